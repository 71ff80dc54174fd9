"""Goal 1 prototype: latent posterior on sine-line. One thread."""
import argparse, json, math, os, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1)

def tasks(T, shot, query, g):
    u = lambda lo, hi, *s: lo + (hi - lo) * torch.rand(*s, generator=g)
    sine = torch.rand(T, 1, generator=g) < .5
    A, P, a, b = u(.1, 5, T, 1), u(0, math.pi, T, 1), u(-3, 3, T, 1), u(-3, 3, T, 1)
    f = lambda x: torch.where(sine, A * torch.sin(x + P), a * x + b)
    xs, xq = u(-5, 5, T, shot), u(-5, 5, T, query)
    ys = f(xs) + .3 * torch.randn(T, shot, generator=g)
    yq = f(xq) + .3 * torch.randn(T, query, generator=g)
    return xs, ys, xq, yq

class Block(nn.Module):
    def __init__(s, w, heads=4, mult=2):
        super().__init__()
        s.heads = heads
        s.n1, s.n2 = nn.LayerNorm(w), nn.LayerNorm(w)
        s.qkv, s.o = nn.Linear(w, 3 * w), nn.Linear(w, w)
        s.a, s.b = nn.Linear(w, mult * w), nn.Linear(mult * w, w)
    def forward(s, h):
        T, N, W = h.shape
        q, k, v = s.qkv(s.n1(h)).view(T, N, 3, s.heads, -1).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-1, -2) * (q.shape[-1] ** -.5)).softmax(-1) @ v
        h = h + s.o(att.transpose(1, 2).reshape(T, N, W))
        return h + s.b(F.gelu(s.a(s.n2(h))))

class Latent(nn.Module):
    def __init__(s, o):
        super().__init__()
        s.o = o; W, d, H = o.enc, o.d, o.H
        s.inp = nn.Sequential(nn.Linear(3 + 2 * o.feat, W), nn.GELU(), nn.Linear(W, W))
        s.blocks = nn.ModuleList(Block(W) for _ in range(o.layers))
        s.norm = nn.LayerNorm(W)
        s.head = nn.Linear(W, 2 * d)
        with torch.no_grad(): s.head.weight.mul_(.3); s.head.bias.zero_(); s.head.bias[d:] = -1.
        # refinement
        if o.refine:
            s.rin = nn.ModuleList(nn.Sequential(nn.Linear(4 + 2 * d, W), nn.GELU(), nn.Linear(W, W)) for _ in range(o.refine))
            s.rblocks = nn.ModuleList(nn.ModuleList(Block(W) for _ in range(o.rlayers)) for _ in range(o.refine))
            s.rhead = nn.ModuleList(nn.Sequential(nn.LayerNorm(W), nn.Linear(W, 2 * d)) for _ in range(o.refine))
            for h in s.rhead: 
                with torch.no_grad(): h[1].weight.mul_(.1); h[1].bias.zero_()
        # generator
        s.shapes = [(1, H), (H,), (H, H), (H,), (H, 2), (2,)]
        n = sum(math.prod(x) for x in s.shapes)
        act = {"relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU}[o.gact]
        s.gen = nn.Sequential(nn.Linear(d, o.g1), act(), nn.Linear(o.g1, o.g2), act())
        s.out = nn.Linear(o.g2, n)
        with torch.no_grad():
            s.out.weight.mul_(o.ginit)
            init = [torch.empty(1, H).uniform_(-1, 1) * o.w1, torch.empty(H).uniform_(-1, 1) * o.b1, torch.randn(H, H) * (o.gain / H) ** .5, torch.zeros(H),
                    torch.randn(H, 2) * (1 / H) ** .5 * .5, torch.zeros(2)]
            s.out.bias.copy_(torch.cat([i.flatten() for i in init]))
        s.lognoise = nn.Parameter(torch.tensor(math.log(.5)))
        s.act = {"relu": F.relu, "silu": F.silu, "tanh": torch.tanh, "sin": torch.sin, "gelu": F.gelu,
                 "snake": lambda h: h + torch.sin(h).square()}[o.act]
    def q(s, x, y):
        o, d = s.o, s.o.d
        parts = [x / 5, y / 5, y / 15]
        for k in range(1, o.feat + 1): parts += [torch.sin(x * k * math.pi / 10), torch.cos(x * k * math.pi / 10)]
        h = s.inp(torch.stack(parts, -1))
        for b in s.blocks: h = b(h)
        r = s.head(s.norm(h).mean(1))
        mu, ls = r[:, :d], r[:, d:]
        outs = [(mu, ls.clamp(-6, 1))]
        for k in range(o.refine):
            f, ln = s.f(mu[:, None], x)          # T,1,N
            f, ln = f[:, 0], ln[:, 0]
            res = y - f
            if o.rdetach: res, f, ln = res.detach(), f.detach(), ln.detach()
            e = torch.stack([res.clamp(-15,15), (res / ln.exp()).clamp(-10, 10)*.3, f.clamp(-15,15) / 5, ln], -1)
            e = torch.cat([e, torch.cat([mu, ls], -1)[:, None].expand(-1, x.shape[1], -1)], -1)
            h = h + s.rin[k](e)
            for b in s.rblocks[k]: h = b(h)
            r = s.rhead[k](h).mean(1)
            mu, ls = mu + r[:, :d], ls + r[:, d:]
            outs.append((mu, ls.clamp(-6, 1)))
        return outs
    def f(s, z, x):
        """z (T,S,d), x (T,N) -> mean, log noise (T,S,N)"""
        T, S, _ = z.shape; N = x.shape[1]
        g = s.gen(z.reshape(T * S, -1))
        if s.o.bf16 and torch.is_grad_enabled():
            w = F.linear(g.bfloat16(), s.out.weight.bfloat16(), s.out.bias.bfloat16()).float()
        else:
            w = s.out(g)
        w1, b1, w2, b2, w3, b3 = [p.reshape(T * S, *(sh if len(sh) > 1 else (1, *sh)))
                                  for p, sh in zip(w.split([math.prod(x) for x in s.shapes], 1), s.shapes)]
        xx = x[:, None].expand(T, S, N).reshape(T * S, N, 1)
        h = s.act(torch.baddbmm(b1, xx, w1))
        h = s.act(torch.baddbmm(b2, h, w2))
        o = torch.baddbmm(b3, h, w3).view(T, S, N, 2)
        return 5 * o[..., 0], torch.log(s.o.floor + torch.exp((s.lognoise + o[..., 1]).clamp(-6, 4)))

def kl(mu, ls): return .5 * (mu ** 2 + (2 * ls).exp() - 1 - 2 * ls).sum(-1)
def lognorm(y, f, ln): return -.5 * ((y - f) / ln.exp()) ** 2 - ln - .5 * math.log(2 * math.pi)

def noise(T, S, d, kind, g=None):
    if kind == "anti":
        e = torch.randn(T, S // 2, d, generator=g); return torch.cat([e, -e], 1)
    return torch.randn(T, S, d, generator=g)

@torch.no_grad()
def evaluate(m, n=2000, shot=5, S=32, seed=11, full=False, kind="iid"):
    g = torch.Generator().manual_seed(seed); m.eval()
    R = {k: [] for k in ("mse", "nll", "kl", "cov90", "crps", "gibbs", "sd")}
    for _ in range(n // 250):
        xs, ys, xq, yq = tasks(250, shot, 50, g)
        mu, ls = m.q(xs, ys)[-1]
        z = mu[:, None] + ls.exp()[:, None] * noise(250, S, m.o.d, kind, g)
        f, ln = m.f(z, xq); y = yq[:, None]
        R["mse"].append(((f.mean(1) - yq) ** 2).mean(1)); R["kl"].append(kl(mu, ls))
        R["nll"].append(-(torch.logsumexp(lognorm(y, f, ln), 1) - math.log(S)).mean(1))
        pit = (.5 * (1 + torch.erf((y - f) / ln.exp() / 2 ** .5))).mean(1)
        R["cov90"].append(((pit > .05) & (pit < .95)).float().mean(1))
        e = (f - y) ** 2; R["gibbs"].append((e / (1 + e)).mean((1, 2)))
        R["sd"].append(ln.exp().mean((1, 2)))
        if full:
            def A(mm, sd):
                t = mm / sd; return mm * torch.erf(t / 2 ** .5) + 2 * sd * torch.exp(-t * t / 2) / (2 * math.pi) ** .5
            sd = ln.exp(); c = A(y - f, sd).mean(1)
            for i in range(S): c = c - .5 / S * A(f - f[:, i:i + 1], (sd ** 2 + sd[:, i:i + 1] ** 2).sqrt()).mean(1)
            R["crps"].append(c.mean(1))
    m.train()
    return {k: round(torch.cat(v).mean().item(), 4) for k, v in R.items() if v}

def parser():
    p = argparse.ArgumentParser(); A = p.add_argument
    A("--name", default="x"); A("--secs", type=float, default=150); A("--seed", type=int, default=0)
    for k, v in dict(T=64, S=16, Q=50, H=40, d=16, enc=128, layers=2, refine=0, rlayers=1, g1=64, g2=128, feat=0, shotlo=5, shothi=5, bf16=1, rdetach=0).items(): A("--" + k, type=int, default=v)
    for k, v in dict(beta=.01, lr=1e-3, warm=300., wd=.01, clip=5., floor=.05, ginit=.3, gain=2., w1=1., b1=3., rw=0., b2=.999, lastfrac=0., ema=0., betaend=-1.).items(): A("--" + k, type=float, default=v)
    A("--act", default="relu"); A("--gact", default="relu"); A("--noise", default="iid"); A("--opt", default="adamw"); A("--every", type=float, default=40); A("--S2", type=int, default=0)
    A("--nosave", type=int, default=0)
    return p

def main():
    o = parser().parse_args(); torch.manual_seed(o.seed)
    g = torch.Generator().manual_seed(1000 + o.seed)
    m = Latent(o); log = open(f"{o.name}.log", "w")
    def say(s): print(s, flush=True); log.write(s + "\n"); log.flush()
    say(json.dumps(vars(o)))
    if o.opt == "muon":
        mats = [p for n, p in m.named_parameters() if p.ndim == 2 and not n.startswith(("inp.0", "head", "out")) ]
        ids = {id(p) for p in mats}; rest = [p for p in m.parameters() if id(p) not in ids]
        opts = [torch.optim.Muon(mats, lr=o.lr, weight_decay=o.wd, adjust_lr_fn="match_rms_adamw"), torch.optim.AdamW(rest, lr=o.lr, weight_decay=o.wd, betas=(.9, o.b2), fused=True)]
    else:
        opts = [torch.optim.AdamW(m.parameters(), lr=o.lr, weight_decay=o.wd, betas=(.9, o.b2), fused=True)]
    start = time.process_time(); evals = 0.; n = 0; nexte = o.every; ema = {}
    while True:
        t = time.process_time() - start - evals
        fr = t / o.secs
        if fr >= 1: break
        lr = o.lr * min(1, (n + 1) / o.warm) * .5 * (1 + math.cos(math.pi * fr))
        for op in opts:
            for gr in op.param_groups: gr["lr"] = lr
        S = o.S2 if o.S2 and fr > 1 - o.lastfrac else o.S
        T = o.T * o.S // S if S != o.S else o.T
        beta = o.beta if o.betaend < 0 else o.beta * (o.betaend / o.beta) ** fr
        shot = o.shotlo if o.shotlo == o.shothi else int(round(math.exp(torch.empty(()).uniform_(math.log(o.shotlo - .49), math.log(o.shothi + .49), generator=g).item())))
        xs, ys, xq, yq = tasks(T, shot, o.Q, g)
        outs = m.q(xs, ys); loss = 0.
        mu, ls = outs[-1]
        z = mu[:, None] + ls.exp()[:, None] * noise(T, S, o.d, o.noise, g)
        f, ln = m.f(z, xq)
        nll = -(torch.logsumexp(lognorm(yq[:, None], f, ln), 1) - math.log(S)).mean()
        loss = nll + beta * kl(mu, ls).mean()
        if o.rw:
            for mu0, ls0 in outs[:-1]:
                z = mu0[:, None] + ls0.exp()[:, None] * noise(T, 4, o.d, o.noise, g)
                f, ln = m.f(z, xs.detach() if False else xq[:, :16])
                loss = loss + o.rw * (-(torch.logsumexp(lognorm(yq[:, None, :16], f, ln), 1) - math.log(4)).mean() + beta * kl(mu0, ls0).mean())
        for op in opts: op.zero_grad()
        loss.backward()
        gn = nn.utils.clip_grad_norm_(m.parameters(), o.clip)
        for op in opts: op.step()
        n += 1
        if o.ema:
            with torch.no_grad():
                for k, v in m.state_dict().items():
                    if k in ema: ema[k].lerp_(v, 1 - min(o.ema, n / (n + 10)))
                    else: ema[k] = v.clone()
        if t > nexte:
            nexte += o.every; a = time.process_time(); say(f"t {t:.0f} n {n} lr {lr:.1e} gn {gn:.2f} " + json.dumps(evaluate(m, 500))); evals += time.process_time() - a
    r = evaluate(m, 2000, full=True)
    say(f"END t {t:.0f} n {n} ups {n/t:.1f} " + json.dumps(r))
    if o.ema:
        sd = m.state_dict(); m.load_state_dict(ema); say("EMA " + json.dumps(evaluate(m, 2000)))
    if not o.nosave: torch.save((vars(o), m.state_dict()), f"{o.name}.pt")
if __name__ == "__main__": main()
