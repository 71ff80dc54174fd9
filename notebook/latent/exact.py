"""Exact posterior (importance weights of K prior functions, 32 draws) under the same metrics: MSE, NLL, CRPS, coverage; 5 shots."""
import sys, math, torch
torch.set_num_threads(1)
import g1
@torch.no_grad()
def main(n=500, seed=99, K=100_000, S=32):
    g = torch.Generator().manual_seed(seed); h = torch.Generator().manual_seed(5)
    u = lambda lo, hi: lo + (hi - lo) * torch.rand(K // 2, generator=h)
    A, P, a, b = u(.1, 5), u(0, math.pi), u(-3, 3), u(-3, 3)
    R = {k: [] for k in ("mse", "nll", "cov90", "crps", "ess")}
    done = 0
    while done < n:
        xs, ys, xq, yq = g1.tasks(250, 5, 50, g); done += 250
        for i in range(250):
            fs = torch.cat([A[:, None] * torch.sin(xs[i] + P[:, None]), a[:, None] * xs[i] + b[:, None]])
            lw = -.5 * ((fs - ys[i]) / .3).square().sum(1); w = lw.softmax(0)
            k = torch.multinomial(w, S, True, generator=h); s = k < K // 2; k = k % (K // 2)
            f = torch.where(s[:, None], A[k, None] * torch.sin(xq[i] + P[k, None]), a[k, None] * xq[i] + b[k, None])
            y = yq[i]; R["mse"].append(((f.mean(0) - y) ** 2).mean()); R["ess"].append(1 / w.square().sum())
            R["nll"].append(-(torch.logsumexp(g1.lognorm(y, f, torch.full_like(f, math.log(.3))), 0) - math.log(S)).mean())
            pit = (.5 * (1 + torch.erf((y - f) / .3 / 2 ** .5))).mean(0); R["cov90"].append(((pit > .05) & (pit < .95)).float().mean())
            def E(m, sd): t = m / sd; return m * torch.erf(t / 2 ** .5) + 2 * sd * torch.exp(-t * t / 2) / (2 * math.pi) ** .5
            R["crps"].append((E(y - f, .3).mean(0) - .5 * E(f[:, None] - f, .3 * 2 ** .5).mean((0, 1))).mean())
    print({k: round(torch.stack(v).mean().item(), 4) for k, v in R.items()}, {k: round(torch.stack(v).std().item()/n**.5, 4) for k, v in R.items()})
main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
