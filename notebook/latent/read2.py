"""Final reading of goal 2: python read2.py NAME seed n steps"""
import sys; import torch, argparse, g1, g2, time
n, seed, k, steps = sys.argv[1], *map(int, sys.argv[2:5])
cfg, sd = torch.load(f"{n}.pt"); m = g1.Latent(argparse.Namespace(**cfg)); m.load_state_dict(sd)
a = time.process_time()
for s, r in g2.evaluate(m, k, seed=seed, steps=steps, lr=float(sys.argv[5]) if len(sys.argv) > 5 else .03).items(): print("steps", steps, s, r, flush=True)
print(round(time.process_time() - a), "s")
