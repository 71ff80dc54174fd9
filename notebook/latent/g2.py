"""Goal 2 prototype: Theorem 1 (kl form) as the objective on sine-line, any m. One thread. Uses g1.Latent."""
import json, math, sys, time
import torch, torch.nn as nn

from fewsure.theory.concentration import kl_inverse
import g1
from g1 import tasks, Latent, kl, lognorm, noise
DELTA = .05
def c_of(K, m): return (K + math.log(2 * math.sqrt(m) / DELTA)) / m
def bounded(f, y): e = (f - y) ** 2; return e / (1 + e)
def bound(m, mu, ls, xs, ys, S, g=None, kind="anti", eps=None):
    T = mu.shape[0]
    e = noise(T, S, m.o.d, kind, g) if eps is None else eps
    f, _ = m.f(mu[:, None] + ls.exp()[:, None] * e, xs)
    L = bounded(f, ys[:, None]).mean((1, 2))
    return kl_inverse(L.double(), c_of(kl(mu, ls), xs.shape[1]).double()), L

def refine(m, mu, ls, xs, ys, steps, lr, S):
    """Adam on the bound itself, from the amortised start; per task independent (sum of bounds)."""
    for p in m.parameters(): p.requires_grad_(False)
    mu, ls = mu.detach().clone().requires_grad_(), ls.detach().clone().requires_grad_()
    op = torch.optim.Adam([mu, ls], lr=lr, betas=(.9, .99))
    with torch.enable_grad():
        for i in range(steps):
            for gr in op.param_groups: gr["lr"] = lr * (1 - i / steps)
            b, _ = bound(m, mu, ls, xs, ys, S)
            op.zero_grad(); b.sum().backward(); op.step()
            with torch.no_grad(): ls.clamp_(-6, 1)
    for p in m.parameters(): p.requires_grad_(True)
    return mu.detach(), ls.detach()

@torch.no_grad()
def evaluate(m, n=500, seed=12, shots=(5, 20, 100), steps=0, lr=.03, S=128, RS=16, risk=True):
    out = {}; m.eval(); bf = m.o.bf16; m.o.bf16 = 0
    for shot in shots:
        g = torch.Generator().manual_seed(seed); B, R, K, L, V, BP = [], [], [], [], [], []
        torch.manual_seed(seed)
        for _ in range(n // 100):
            xs, ys, xq, yq = tasks(100, shot, 200, g)
            mu, ls = m.q(xs, ys)[-1]
            if steps: mu, ls = refine(m, mu, ls, xs, ys, steps, lr, RS)
            b, l = bound(m, mu, ls, xs, ys, S, kind="iid"); B.append(b); L.append(l); K.append(kl(mu, ls))
            if risk:
                f, _ = m.f(mu[:, None] + ls.exp()[:, None] * noise(100, 32, m.o.d, "iid"), xq)
                r = bounded(f, yq[:, None]).mean((1, 2)); R.append(r); V.append((r > b).float())
        cat = lambda v: round(torch.cat(v).double().mean().item(), 4)
        out[shot] = dict(bound=cat(B), loss=cat(L), kl=cat(K), **(dict(risk=cat(R), viol=cat(V)) if risk else {}))
    m.train(); m.o.bf16 = bf
    return out

def main():
    p = g1.parser(); p.add_argument("--aux", type=float, default=1.); p.add_argument("--auxend", type=float, default=.4); p.add_argument("--points", type=int, default=640); p.add_argument("--init", default="")
    p.add_argument("--cat", type=float, default=0.)
    o = p.parse_args(); torch.manual_seed(o.seed); g = torch.Generator().manual_seed(2000 + o.seed)
    m = Latent(o); log = open(f"{o.name}.log", "w")
    if o.init: m.load_state_dict(torch.load(o.init)[1])
    def say(s): print(s, flush=True); log.write(s + "\n"); log.flush()
    say(json.dumps(vars(o)))
    mats = [p for n_, p in m.named_parameters() if p.ndim == 2 and not n_.startswith(("inp.0", "head", "out"))]; ids = {id(p) for p in mats}
    opts = [torch.optim.Muon(mats, lr=o.lr, weight_decay=o.wd, adjust_lr_fn="match_rms_adamw"), torch.optim.AdamW([p for p in m.parameters() if id(p) not in ids], lr=o.lr, weight_decay=o.wd, betas=(.9, o.b2), fused=True)]
    start = time.process_time(); evals = 0.; n = 0; nexte = o.every
    while True:
        t = time.process_time() - start - evals; fr = t / o.secs
        if fr >= 1: break
        for gr in [k for op in opts for k in op.param_groups]: gr["lr"] = o.lr * min(1, (n + 1) / o.warm) * .5 * (1 + math.cos(math.pi * fr))
        shot = int(round(math.exp(math.log(o.shotlo - .49) + torch.rand((), generator=g).item() * math.log((o.shothi + .49) / (o.shotlo - .49)))))
        T = max(8, min(o.T, o.points // shot))
        xs, ys, xq, yq = tasks(T, shot, o.Q, g)
        mu, ls = m.q(xs, ys)[-1]
        a = o.aux * max(0., 1 - fr / o.auxend)
        # evaluate on at most 32 of the support points during training (an unbiased reading of the empirical loss)
        keep = slice(0, min(shot, 32))
        xe, ye = (torch.cat([xs[:, keep], xq], 1), torch.cat([ys[:, keep], yq], 1)) if a > 0 else (xs[:, keep], ys[:, keep])
        z = mu[:, None] + ls.exp()[:, None] * noise(T, o.S, o.d, "anti", g)
        f, ln = m.f(z, xe); k = min(shot, 32)
        L = bounded(f[..., :k], ye[:, None, :k]).mean((1, 2))
        K = kl(mu, ls)
        b = kl_inverse(L.double(), c_of(K, shot).double()).float()
        loss = b.mean()
        if o.cat: loss = loss + o.cat * (L + K / shot).mean()
        if a > 0:
            ll = lognorm(ye[:, None], f, ln)[..., k:]
            loss = loss + a * (-(torch.logsumexp(ll, 1) - math.log(o.S)).mean() + .01 * K.mean())
        [op.zero_grad() for op in opts]; loss.backward()
        gn = nn.utils.clip_grad_norm_(m.parameters(), o.clip); [op.step() for op in opts]; n += 1
        if t > nexte:
            nexte += o.every; s = time.process_time()
            say(f"t {t:.0f} n {n} gn {gn:.2f} " + json.dumps(evaluate(m, 300, risk=False))); evals += time.process_time() - s
    say(f"END t {t:.0f} n {n} ups {n/t:.1f} " + json.dumps(evaluate(m, 500)))
    torch.save((vars(o), m.state_dict()), f"{o.name}.pt")
    s = time.process_time()
    say("REF50 " + json.dumps(evaluate(m, 200, steps=50)) + f" {time.process_time()-s:.0f}s")
if __name__ == "__main__": main()
