"""Goal 3 prototype: Omniglot, latent per class, one network for the whole frontier (encoder is told ln beta). One thread."""
import argparse, json, math, time, sys
import torch, torch.nn as nn, torch.nn.functional as F

from g1 import Block, kl
torch.set_num_threads(1)

class Body(nn.Module):
    def __init__(s, f=64):
        super().__init__(); c = 1; L = []
        for i in range(4):   # first layer strided, pooling before the norm: 85 ms instead of 225 ms for 360 images
            L += [nn.Conv2d(1, f, 5, padding=2, stride=2, bias=False)] if i == 0 else [nn.Conv2d(f, f, 3, padding=1, bias=False), nn.MaxPool2d(2)]
            L += [nn.BatchNorm2d(f), nn.ReLU()]
        s.net = nn.Sequential(*L).to(memory_format=torch.channels_last); s.proj = nn.Linear(f, f)
    def forward(s, x):
        x = x.to(memory_format=torch.channels_last)
        if s.training:
            with torch.autocast("cpu", torch.bfloat16): h = s.net(x)
        else: h = s.net(x)
        return s.proj(h.float().flatten(1))

class Head(nn.Module):
    def __init__(s, f=64, W=64, d=16, layers=2):
        super().__init__(); s.d = d
        s.inp = nn.Linear(f, W); s.cond = nn.Sequential(nn.Linear(2, W), nn.GELU(), nn.Linear(W, W))
        s.blocks = nn.ModuleList(Block(W) for _ in range(layers)); s.norm = nn.LayerNorm(W); s.out = nn.Linear(W, 2 * d)
        with torch.no_grad(): s.out.bias.zero_(); s.out.bias[d:] = -1.
        s.ln = nn.LayerNorm(f, elementwise_affine=False)
        s.A = nn.Parameter(torch.randn(d, f + 1) * .1)
        s.scale = nn.Parameter(torch.zeros(()))
    def q(s, e, beta, shot):
        """e (T,C,f) class means -> mu, ls (T,C,d)"""
        e = s.ln(e)
        c = torch.stack([beta.log() / 2 + 2.5, torch.full_like(beta, math.log(shot))], -1)
        h = s.inp(e) + s.cond(c)[:, None]
        for b in s.blocks: h = b(h)
        r = s.out(s.norm(h)); return r[..., :s.d], r[..., s.d:].clamp(-5, .5)
    def logits(s, z, eq):
        """z (T,S,C,d), eq (T,N,f) -> (T,S,N,C)"""
        h = s.ln(eq); rows = z @ (s.A * s.scale.exp())
        return torch.einsum("tnf,tscf->tsnc", h, rows[..., :-1]) + rows[..., -1][:, :, None]

def load(): return torch.load("omniglot.pt")
def pool(data, split):
    x, st = data[split]; return x.view(-1, 20, 28, 28)

def ece(conf, ok, bins=15):
    b = (conf * bins).long().clamp(max=bins - 1); e = 0.
    for i in range(bins):
        k = b == i
        if k.any(): e += k.float().mean() * (conf[k].mean() - ok[k].mean()).abs()
    return float(e)

@torch.no_grad()
def embed(body, X):
    body.eval(); K = X.shape[0]
    e = torch.cat([body(X[i:i + 25].reshape(-1, 1, 28, 28).float() / 255) for i in range(0, K, 25)])
    body.train(); return e.view(K, 20, -1)

@torch.no_grad()
def evaluate(head, E, betas, n=500, shot=1, query=15, way=5, S=32, seed=7):
    out = {}
    for bt in betas:
        g = torch.Generator().manual_seed(seed); torch.manual_seed(seed); P, Y, Ks, G = [], [], [], []
        for _ in range(n // 100):
            cls = torch.stack([torch.randperm(E.shape[0], generator=g)[:way] for _ in range(100)])
            img = torch.rand(100, way, 20, generator=g).argsort(-1)[..., :shot + query]
            e = E[cls[..., None], img]
            mu, ls = head.q(e[:, :, :shot].mean(2), torch.full((100,), bt), shot)
            z = mu[:, None] + ls.exp()[:, None] * torch.randn(100, S, way, head.d)
            lg = head.logits(z, e[:, :, shot:].reshape(100, way * query, -1))
            y = torch.arange(way).repeat_interleave(query).expand(100, -1)
            P.append(lg.softmax(-1).mean(1)); Y.append(y); Ks.append(kl(mu, ls).sum(1)); G.append((lg.argmax(-1) != y[:, None]).float().mean())
        P, Y = torch.cat(P).flatten(0, 1), torch.cat(Y).flatten(); c, a = P.max(-1); ok = (a == Y).float()
        out[bt] = dict(acc=round(100 * ok.mean().item(), 2), nll=round(-P.gather(1, Y[:, None]).log().mean().item(), 4), ece=round(ece(c, ok), 4), kl=round(torch.cat(Ks).mean().item(), 1), gibbs=round(torch.stack(G).mean().item(), 4))
    return out

@torch.no_grad()
def proto_acc(E, n=500, seed=7):
    g = torch.Generator().manual_seed(seed); ok = []
    for _ in range(n):
        cls = torch.randperm(E.shape[0], generator=g)[:5]; img = torch.rand(5, 20, generator=g).argsort(-1)[:, :16]
        e = E[cls[:, None], img]; d = torch.cdist(e[:, 1:].reshape(75, -1), e[:, 0]); ok.append((d.argmin(1) == torch.arange(5).repeat_interleave(15)).float().mean())
    return round(100 * torch.stack(ok).mean().item(), 2)

def main():
    p = argparse.ArgumentParser(); A = p.add_argument
    A("--name", default="o"); A("--secs", type=float, default=300); A("--every", type=float, default=60)
    for k, v in dict(C=60, I=6, T=60, S=8, d=16, W=64, seed=0).items(): A("--" + k, type=int, default=v)
    for k, v in dict(lr=2e-3, wd=.01, blo=3e-4, bhi=2e-2, aux=1.).items(): A("--" + k, type=float, default=v)
    o = p.parse_args(); torch.manual_seed(o.seed); g = torch.Generator().manual_seed(o.seed)
    data = load(); X = pool(data, "train"); V = pool(data, "validation")
    body, head = Body(), Head(d=o.d, W=o.W); tau = nn.Parameter(torch.tensor(-2.))
    ps = [*body.parameters(), *head.parameters(), tau]; op = torch.optim.AdamW(ps, lr=o.lr, weight_decay=o.wd, fused=True)
    log = open(f"{o.name}.log", "w")
    def say(s): print(s, flush=True); log.write(s + "\n"); log.flush()
    say(json.dumps(vars(o))); start = time.process_time(); ev = 0.; n = 0; nexte = o.every; B = (5e-4, .002, .005, .01, .02)
    while True:
        t = time.process_time() - start - ev; fr = t / o.secs
        if fr >= 1: break
        for gr in op.param_groups: gr["lr"] = o.lr * min(1, (n + 1) / 100) * .5 * (1 + math.cos(math.pi * fr))
        cls = torch.randperm(806 * 4, generator=g)[:o.C]; img = torch.rand(o.C, 20, generator=g).argsort(-1)[:, :o.I]
        x = X[(cls % 806)[:, None], img].float() / 255; r = cls // 806
        x = torch.stack([torch.rot90(xx, int(k), (-2, -1)) for xx, k in zip(x, r)])
        e = body(x.view(-1, 1, 28, 28)).view(o.C, o.I, -1)
        # proto, all ways, each image once as the shot of its class is too dear: image 0 is the shot
        d2 = torch.cdist(e[:, 1:].reshape(-1, e.shape[-1]), e[:, 0]).square()
        lp = F.cross_entropy(-d2 * tau.exp(), torch.arange(o.C).repeat_interleave(o.I - 1))
        sub = torch.rand(o.T, o.C, generator=g).argsort(-1)[:, :5]
        perm = torch.rand(o.T, 5, o.I, generator=g).argsort(-1)
        et = e[sub[..., None], perm]                             # T,5,I,f
        beta = torch.exp(math.log(o.blo) + torch.rand(o.T, generator=g) * math.log(o.bhi / o.blo))
        mu, ls = head.q(et[:, :, 0], beta, 1)
        z = mu[:, None] + ls.exp()[:, None] * torch.randn(o.T, o.S, 5, o.d)
        lg = head.logits(z, et[:, :, 1:].reshape(o.T, 5 * (o.I - 1), -1)).log_softmax(-1)
        y = torch.arange(5).repeat_interleave(o.I - 1)
        lm = torch.logsumexp(lg, 1) - math.log(o.S)              # T,N,C
        nll = F.nll_loss(lm.flatten(0, 1), y.repeat(o.T), reduction="none").view(o.T, -1).mean(1)
        loss = (nll + beta * kl(mu, ls).sum(1)).mean() + o.aux * lp
        op.zero_grad(); loss.backward(); nn.utils.clip_grad_norm_(ps, 5.); op.step(); n += 1
        if t > nexte:
            nexte += o.every; s = time.process_time(); E = embed(body, V)
            say(f"t {t:.0f} n {n} lp {lp.item():.3f} nll {nll.mean().item():.3f} proto {proto_acc(E,200)} " + json.dumps(evaluate(head, E, B[::2], 300))); ev += time.process_time() - s
    E = embed(body, V)
    say(f"END t {t:.0f} n {n} proto {proto_acc(E)} " + json.dumps(evaluate(head, E, B, 1000)))
    torch.save((vars(o), body.state_dict(), head.state_dict()), f"{o.name}.pt")
if __name__ == "__main__": main()
