"""Options that a Learner takes by name, for editors: `python tests/learner_options.py` writes this file."""

from collections.abc import Sequence
from typing import Literal, TypedDict

Method = Literal[
    "auto",
    "simpa",
    "simpa-latent",
    "tnp",
    "cnp",
    "maml",
    "abml",
    "vampire",
    "platipus",
    "bmaml",
    "protonet",
    "gp",
    "pacoh",
    "mixed",
    "ridge",
    "mean",
    "boosting",
    "simpleshot",
    "logistic",
    "dkt",
    "metaoptnet",
    "metaqda",
]


class Options(TypedDict, total=False):
    """Options of all methods, data, networks and trainings; `fewsure train METHOD --help` explains each."""

    activation: Literal["relu", "silu"]
    active_inputs: int | None
    amplitude: Sequence[float]
    ard: bool
    backbone: str
    basis: int
    budget: float | str
    categories: Sequence[str]
    centred: bool
    chaser: bool
    chunk_size: int | None
    clip: Literal["hard", "none", "bounded"]
    clip_norm: float | None
    components: int
    cosine: bool
    critic_hidden: Sequence[int]
    critic_lr: float
    critic_steps: int
    cuda_graph: bool
    cut_way: int
    cuts: int
    depth: int
    descriptors: bool
    embedding: int
    encoder_layers: int
    encoder_width: int
    epsilon: float
    features: Sequence[str]
    file: str
    filters: int
    first_order: bool
    fit_groups: int
    fit_rows: int
    fixed_classes: bool
    folder: str
    forecast: float
    form: Literal["paper", "log", "kl"]
    frequencies: int
    gamma_rate: float
    gamma_shape: float
    gaussians: int
    generator_hidden: Sequence[int]
    grey: bool
    group_scales: bool
    hidden: Sequence[int]
    hyper_prior_tasks: int
    image_size: int
    imagined: int
    inference_lr: float
    inference_std: float
    initial_std: float
    initial_weights: Literal["generator", "network"]
    inner_clip_norm: float | None
    inner_lr: float
    inner_steps: int
    input_scale: float
    intercept: Sequence[float]
    keep_best: int
    kernels: Sequence[str]
    kl: Literal["moment", "moment+critic", "critic", "semi-implicit", "none"]
    kl_samples: int
    kl_weight: float
    kl_weight_spread: float
    label: str
    latent: int
    latent_noise: Literal["uniform", "normal"]
    leader_steps: int
    learn_features: bool
    leave_one_out: bool
    leaves: int
    length: float | None
    likelihood_scale: float
    lr: float
    lr_warm_up: int
    members: int
    methods: Sequence[str]
    missing: Literal["refuse", "impute"]
    momentum: float
    noise_floor: float
    noise_std: float | None
    norm: Literal["batch", "support", "instance", "none"]
    objective: Literal["predictive", "theorem-1"]
    optimiser: Literal["adam", "adamw", "muon", "sgd"]
    particles: int
    patience: int
    phase: Sequence[float]
    precision: Literal["auto", "tf32", "float32", "bf16"]
    prior_lr: float
    prior_std: float | None
    prior_tasks: int
    prior_weight_std: float
    prototype_weight: float
    query: int
    refinements: int
    reml: bool
    scaled_generator: bool
    schedule: Literal["cosine", "linear", "step", "constant"]
    seed: int
    shares: Sequence[float]
    shot: int | tuple[int, int] | str
    sigma_0: float
    sigma_theta: float
    sigma_w: float
    sine_share: float
    slope: Sequence[float]
    slopes: bool
    softmax_temperature: float | None
    solver_steps: int
    split_column: str | None
    start_at_means: bool
    strided: bool
    target: str
    target_scale: float
    task_column: str | None
    tasks: int
    temperature: float
    temperature_exponent: float | None
    temperature_of: Literal["networks", "mixture"]
    train_dropping: float
    train_flip: bool
    train_mixing: float
    train_on_validation: bool
    train_query: int | None
    train_samples: int
    train_shift: int
    train_shot: int | tuple[int, int] | str | None
    train_turn: bool
    train_way: int | None
    tree_lr: float
    trees: int
    trend: Literal["constant", "linear", "network"]
    updates: int
    warm_up_tasks: int
    way: int
    weight_decay: float
    weight_noise: float
    weights: str | None
    with_inputs: bool
    within_group: bool
    x_range: Sequence[float]
