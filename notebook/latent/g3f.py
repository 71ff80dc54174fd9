import sys; import torch, g3, g3d, torch.nn.functional as F
E,V=torch.load("o1.feat"); proto=F.layer_norm(E.mean(1),(64,))
def mk(M): torch.manual_seed(0); c=torch.stack([torch.randperm(len(E))[:5] for _ in range(M)]); return torch.cat([proto[c],torch.zeros(M,5,1)],-1)
s=torch.tensor(.2)
print("val 4096",g3d.bounds(mk(4096),s,torch.zeros(4096),V,100),flush=True); print("val 1024",g3d.bounds(mk(1024),s,torch.zeros(1024),V,100),flush=True)
cfg,bs,hs=torch.load("o1.pt"); b=g3.Body(); b.load_state_dict(bs); X=g3.embed(b,g3.pool(g3.load(),"test"))
print("TEST 1024",g3d.bounds(mk(1024),s,torch.zeros(1024),X,1000,seed=123),flush=True)
