import torch
from fewsure.data.sets.omniglot import OMNIGLOT
from fewsure.data.io.cache import load
torch.save({s:(load(OMNIGLOT,s,quiet=True).examples.clone(), load(OMNIGLOT,s,quiet=True).starts.clone()) for s in ("train","validation","test")},"omniglot.pt")
