"""Final reading of goal 3 on the 659 test classes: python read3.py RUN(o1: body+head; ob: bound head)"""
import sys, torch; import g3, g3b
n, mode, k = sys.argv[1], sys.argv[2], int(sys.argv[3])
cfg, bs, hs = torch.load(f"{n}.pt"); b = g3.Body(); b.load_state_dict(bs); h = g3.Head(d=cfg["d"], W=cfg["W"]); h.load_state_dict(hs)
E = g3.embed(b, g3.pool(g3.load(), "test"))
if mode == "freq":
    print("proto", g3.proto_acc(E, k, seed=123))
    for bt, r in g3.evaluate(h, E, (3e-4, 5e-4, .001, .002, .005, .01, .02), k, seed=123).items(): print(bt, r, flush=True)
else:
    print("bound, no steps", g3b.bounds(h, E, k, seed=123, S=200)); print("bound, 30 steps", g3b.bounds(h, E, min(k, 400), seed=123, S=200, steps=30))
    print("bound, no steps, same 400", g3b.bounds(h, E, min(k, 400), seed=123, S=200))
