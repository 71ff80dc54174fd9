import sys; import torch, g3d, torch.nn.functional as F
E,V=torch.load("o1.feat"); proto=F.layer_norm(E.mean(1),(64,))
for M in (256,1024):
    torch.manual_seed(0); c=torch.stack([torch.randperm(len(E))[:5] for _ in range(M)])
    W=torch.cat([proto[c],torch.zeros(M,5,1)],-1); print("untrained M",M,g3d.bounds(W,torch.tensor(.2),torch.zeros(M),V,200),flush=True)
