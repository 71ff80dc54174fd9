"""Final reading of goal 1 on test tasks: python read1.py NAME [seed] [n]"""
import sys; import torch, argparse, g1
n, seed, k = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
cfg, sd = torch.load(f"{n}.pt"); m = g1.Latent(argparse.Namespace(**cfg)); m.load_state_dict(sd); torch.manual_seed(1)
print("iid 32", g1.evaluate(m, k, seed=seed, full=True)); print("antithetic 32", g1.evaluate(m, k, seed=seed, full=True, kind="anti"))
