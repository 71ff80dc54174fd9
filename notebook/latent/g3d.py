"""Goal 3b with a finite latent: M learned 5-way heads x the 120 numberings; q is the exact Gibbs posterior, KL in closed form, no sampling."""
import sys, math, time, itertools, torch, torch.nn as nn, torch.nn.functional as F

from fewsure.theory.concentration import kl_inverse
import g3
torch.set_num_threads(1); DELTA = .05; way, shot = 5, 5; m = 25
PERM = torch.zeros(25, 120)
for j, p in enumerate(itertools.permutations(range(5))):
    for c in range(5): PERM[c * 5 + p[c], j] = .2      # class c is told by cell p[c]
def hits(p): return p @ PERM                            # p (T,M,25): mean over class c's shots of cell k -> (T,M,120) accuracy
def score(W, s, e):                                     # e (T,5,n,f) -> logits (T,M,5,n,5)
    h = F.layer_norm(e, e.shape[-1:]); return torch.einsum("tcnf,mkf->tmcnk", h, W[..., :-1]) * s + W[..., -1][None, :, None, None]
def gibbs(L, lp, lam):                                  # exact q over (head, numbering)
    L = L.flatten(1); lq = (lp - lam * m * L).log_softmax(1); q = lq.exp(); return q, (q * L).sum(1), (q * (lq - lp)).sum(1)
def bnd(L, K): return kl_inverse(L.double().clamp(0, 1), (K.double().clamp(min=0) + math.log(2 * math.sqrt(m) / DELTA)) / m)
def lprior(a): return (a.log_softmax(0)[:, None] - math.log(120)).expand(-1, 120).flatten()
@torch.no_grad()
def bounds(W, s, a, E, n, seed=7):
    g = torch.Generator().manual_seed(seed); lp = lprior(a); R = []
    for _ in range(n // 50):
        cls = torch.stack([torch.randperm(E.shape[0], generator=g)[:5] for _ in range(50)]); img = torch.rand(50, 5, 20, generator=g).argsort(-1)[..., :20]
        lg = score(W, s, E[cls[..., None], img]); hard = F.one_hot(lg.argmax(-1), 5).float()
        L = 1 - hits(hard[:, :, :, :5].mean(3).flatten(2)); Lq = (1 - hits(hard[:, :, :, 5:].mean(3).flatten(2))).flatten(1)
        best = torch.full((50,), 2., dtype=torch.double); out = torch.zeros(50, 3)
        for lam in (.3, .5, .7, 1., 1.4, 2.):
            q, l, k = gibbs(L, lp, lam); b = bnd(l, k); i = b < best; best = torch.where(i, b, best); out[i] = torch.stack([l, k, (q * Lq).sum(1)], -1)[i]
        R.append(torch.cat([best[:, None].float(), out, (out[:, 2:] > best[:, None]).float()], 1))
    return dict(zip(("bound", "gibbs_sup", "kl", "gibbs_query", "viol"), [round(v, 4) for v in torch.cat(R).mean(0).tolist()]))
if __name__ == "__main__":
    name, init, secs, M = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]); torch.manual_seed(0); g = torch.Generator().manual_seed(0)
    E, V = torch.load(f"{init}.feat"); lr, T = 5e-3, 24
    proto = F.layer_norm(E.mean(1), (64,)); c = torch.stack([torch.randperm(len(E))[:5] for _ in range(M)])
    W = nn.Parameter(torch.cat([proto[c], torch.zeros(M, 5, 1)], -1)); ls = nn.Parameter(torch.tensor(math.log(.2))); a = nn.Parameter(torch.zeros(M)); ll = nn.Parameter(torch.zeros(()))
    op = torch.optim.Adam([W, ls, a, ll], lr=lr); st = time.process_time(); n = 0; nx = 0.; ev = 0.
    while True:
        t = time.process_time() - st - ev
        if t >= nx: nx += secs / 4; b = time.process_time(); print(f"t {t:.0f} n {n} lam {ll.exp().item():.2f} s {ls.exp().item():.2f}", bounds(W, ls.exp(), a, V, 300), flush=True); ev += time.process_time() - b
        if t >= secs: break
        for gr in op.param_groups: gr["lr"] = lr * .5 * (1 + math.cos(math.pi * t / secs))
        cls = torch.rand(T, len(E), generator=g).topk(5).indices; img = torch.rand(T, 5, 20, generator=g).argsort(-1)[..., :5]
        p = score(W, ls.exp(), E[cls[..., None], img]).softmax(-1).mean(3).flatten(2)
        q, l, k = gibbs(1 - hits(p), lprior(a), ll.exp()); loss = bnd(l, k).float().mean()
        op.zero_grad(); loss.backward(); op.step(); n += 1
    print("END", n, bounds(W, ls.exp(), a, V, 1000), flush=True); torch.save((W, ls, a), f"{name}.pt")
    cfg, bs, hs = torch.load(f"{init}.pt"); body = g3.Body(); body.load_state_dict(bs)
    print("TEST", bounds(W, ls.exp(), a, g3.embed(body, g3.pool(g3.load(), "test")), 2000, seed=123), flush=True)
