"""Goal 3b: frozen body of g3, head trained on cached features. mode=bound: Theorem 1 (kl form), 5-shot, loss 1 - p_y. mode=freq: beta-conditioned 1-shot."""
import argparse, json, math, time, sys
import torch, torch.nn as nn, torch.nn.functional as F

from fewsure.theory.concentration import kl_inverse
from g1 import kl
from g3 import Body, Head, load, pool, embed, evaluate
torch.set_num_threads(1); DELTA = .05
def c_of(K, m): return (K + math.log(2 * math.sqrt(m) / DELTA)) / m

def refine(head, mu, ls, es, y, steps, lr, S):
    mu, ls = mu.detach().clone().requires_grad_(), ls.detach().clone().requires_grad_(); op = torch.optim.Adam([mu, ls], lr=lr)
    m = es.shape[1]
    with torch.enable_grad():
        for i in range(steps):
            for gr in op.param_groups: gr["lr"] = lr * (1 - i / steps)
            e = torch.randn(mu.shape[0], S // 2, *mu.shape[1:]); e = torch.cat([e, -e], 1)
            p = head.logits(mu[:, None] + ls.exp()[:, None] * e, es).softmax(-1)
            L = 1 - p.gather(-1, y[None, None, :, None].expand(*p.shape[:3], 1)).squeeze(-1).mean((1, 2))
            b = kl_inverse(L.double(), c_of(kl(mu, ls).sum(1), m).double()); op.zero_grad(); b.sum().backward(); op.step()
    return mu.detach(), ls.detach()

@torch.no_grad()
def bounds(head, E, n=500, shot=5, way=5, S=200, seed=7, steps=0, lr=.05):
    g = torch.Generator().manual_seed(seed); torch.manual_seed(seed); R = []
    for p in head.parameters(): p.requires_grad_(False)
    for _ in range(n // 100):
        cls = torch.stack([torch.randperm(E.shape[0], generator=g)[:way] for _ in range(100)])
        img = torch.rand(100, way, 20, generator=g).argsort(-1)[..., :shot + 15]
        e = E[cls[..., None], img]; es = e[:, :, :shot].reshape(100, way * shot, -1); y = torch.arange(way).repeat_interleave(shot); yq = torch.arange(way).repeat_interleave(15)
        mu, ls = head.q(e[:, :, :shot].mean(2), torch.full((100,), .01), shot)
        if steps: mu, ls = refine(head, mu, ls, es, y, steps, lr, 16)
        z = mu[:, None] + ls.exp()[:, None] * torch.randn(100, S, way, head.d)
        L = (head.logits(z, es).argmax(-1) != y).float().mean((1, 2)); K = kl(mu, ls).sum(1)
        lq = head.logits(z[:, :32], e[:, :, shot:].reshape(100, way * 15, -1)); r = (lq.argmax(-1) != yq).float().mean((1, 2))
        acc = (lq.softmax(-1).mean(1).argmax(-1) == yq).float().mean(1)
        b = kl_inverse(L.double(), c_of(K, way * shot).double())
        # with the Monte-Carlo error paid: delta/20 for it (Chernoff on S draws of the mean over the support)
        Lu = kl_inverse(L.double(), torch.full_like(L, math.log(20 / DELTA) / S).double()); bm = kl_inverse(Lu, ((K + math.log(2 * math.sqrt(way * shot) / (DELTA * .95))) / (way * shot)).double())
        R.append(torch.stack([b, bm, L.double(), K.double(), r.double(), acc.double(), (r > b).double()], -1))
    for p in head.parameters(): p.requires_grad_(True)
    r = torch.cat(R).mean(0).tolist(); return dict(zip(("bound", "bound_mc", "gibbs_sup", "kl", "gibbs_query", "acc", "viol"), [round(v, 4) for v in r]))

def features(body, X):
    return torch.cat([embed(body, torch.rot90(X, k, (-2, -1)).contiguous()) for k in range(4)])

def main():
    p = argparse.ArgumentParser(); A = p.add_argument; A("--name", default="ob"); A("--init", default="o"); A("--secs", type=float, default=60); A("--mode", default="bound"); A("--T", type=int, default=96); A("--S", type=int, default=8); A("--lr", type=float, default=1e-3); A("--seed", type=int, default=0); A("--jit", type=float, default=0.)
    A("--fresh", type=int, default=0)
    A("--blo", type=float, default=3e-4); A("--bhi", type=float, default=2e-2)
    o = p.parse_args(); torch.manual_seed(o.seed); g = torch.Generator().manual_seed(o.seed)
    cfg, bs, hs = torch.load(f"{o.init}.pt"); body = Body(); body.load_state_dict(bs); head = Head(d=cfg["d"], W=cfg["W"])
    if not o.fresh: head.load_state_dict(hs)
    data = load(); a = time.process_time()
    try: E, V = torch.load(f"{o.init}.feat")
    except FileNotFoundError: E, V = features(body, pool(data, "train")), embed(body, pool(data, "validation")); torch.save((E, V), f"{o.init}.feat")
    print("features", round(time.process_time() - a), "s", E.shape, flush=True)
    op = torch.optim.AdamW(head.parameters(), lr=o.lr, weight_decay=.01, fused=True); start = time.process_time(); n = 0; y = torch.arange(5).repeat_interleave(5); nexte = o.secs / 3
    sd = E.std((0, 1))
    if o.mode == "bound": print("start", bounds(head, V))
    else: print("start", evaluate(head, V, (5e-4, .002, .01, .02)))
    while True:
        t = time.process_time() - start; fr = t / o.secs
        if fr >= 1: break
        for gr in op.param_groups: gr["lr"] = o.lr * min(1, (n + 1) / 100) * .5 * (1 + math.cos(math.pi * fr))
        cls = torch.rand(o.T, E.shape[0], generator=g).topk(5).indices
        img = torch.rand(o.T, 5, 20, generator=g).argsort(-1)[..., :(5 if o.mode == "bound" else 6)]
        e = E[cls[..., None], img]
        if o.jit: e = e + o.jit * sd * torch.randn(e.shape)
        if o.mode == "bound":
            mu, ls = head.q(e.mean(2), torch.full((o.T,), .01), 5)
            z = mu[:, None] + ls.exp()[:, None] * torch.randn(o.T, o.S, 5, head.d)
            p = head.logits(z, e.reshape(o.T, 25, -1)).softmax(-1); L = 1 - p.gather(-1, y[None, None, :, None].expand(o.T, o.S, 25, 1)).squeeze(-1).mean((1, 2))
            loss = kl_inverse(L.double(), c_of(kl(mu, ls).sum(1), 25).double()).float().mean()
        else:
            beta = torch.exp(math.log(o.blo) + torch.rand(o.T, generator=g) * math.log(o.bhi / o.blo)); mu, ls = head.q(e[:, :, 0], beta, 1)
            z = mu[:, None] + ls.exp()[:, None] * torch.randn(o.T, o.S, 5, head.d)
            lm = torch.logsumexp(head.logits(z, e[:, :, 1:].reshape(o.T, 25, -1)).log_softmax(-1), 1) - math.log(o.S)
            loss = (F.nll_loss(lm.flatten(0, 1), y.repeat(o.T), reduction="none").view(o.T, -1).mean(1) + beta * kl(mu, ls).sum(1)).mean()
        op.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(head.parameters(), 5.); op.step(); n += 1
        if t > nexte: nexte += o.secs / 3; print(f"t {t:.0f} n {n} loss {loss.item():.3f}", bounds(head, V, 300) if o.mode == "bound" else evaluate(head, V, (5e-4, .005, .02), 300), flush=True)
    if o.mode == "bound":
        print("END", n, bounds(head, V, 1000)); print("REF30", bounds(head, V, 300, steps=30))
    else: print("END", n, evaluate(head, V, (5e-4, .001, .002, .005, .01, .02), 1000))
    torch.save((cfg, bs, head.state_dict()), f"{o.name}.pt")
if __name__ == "__main__": main()
