"""Examples of csrun.nn's public names, at most three lines each, in the order of docs/nn.md.

A comment at a line's end is the shape of its result; tests/docs checks it. INPUTS are the tensors
that the examples begin with. Elementwise functions of one argument have one common form.
"""

INPUTS = {
    "x": ((8, 16), "float32"),
    "y": ((8, 16), "float32"),
    "sequence": ((8, 12, 64), "float32"),
    "query": ((8, 4, 12, 16), "float32"),
    "images": ((8, 3, 32, 32), "float32"),
    "tokens": ((8, 12), "int32"),
    "labels": ((8,), "int32"),
    "clicked": ((8,), "int32"),
}

LAYERS = {
    "scope": """with nn.scope("block"), nn.scope(0):
    hidden = nn.Dense(32, "relu", name="up")(x)  # [8, 32]""",
    "Dense": """hidden = nn.Dense(64, "relu", name="hidden")(x)  # [8, 64]
logits = nn.Dense(10, use_bias=False)(hidden)  # [8, 10]""",
    "Bias": """shifted = nn.Bias(name="offset")(x)  # [8, 16]""",
    "Embedding": """table = nn.Embedding(1000, 64, padding_idx=0, name="words")
vectors = table(tokens)  # [8, 12, 64]
logits = table.attend(sequence)  # [8, 12, 1000]""",
    "PositionEmbedding": "out = nn.PositionEmbedding(12)(sequence)  # [8, 12, 64]",
    "MultiHeadAttention": """out = nn.MultiHeadAttention(4, is_causal=True)(sequence)  # [8, 12, 64]
mask = tokens != 0  # [8, 12]
out = nn.MultiHeadAttention(4)(sequence, mask)  # [8, 12, 64]""",
    "LayerNorm": "out = nn.LayerNorm(epsilon=1e-6)(sequence)  # [8, 12, 64]",
    "RMSNorm": "out = nn.RMSNorm()(sequence)  # [8, 12, 64]",
    "Conv2D": """out = nn.Conv2D(32, 3, padding=1, activation="relu")(images)  # [8, 32, 32, 32]
halved = nn.Conv2D(64, 3, stride=2, padding=1)(out)  # [8, 64, 16, 16]""",
    "MaxPool": "out = nn.MaxPool(2)(images)  # [8, 3, 16, 16]",
    "AveragePool": "out = nn.AveragePool(3, stride=2, padding=1)(images)  # [8, 3, 16, 16]",
    "BatchNorm": "out = nn.BatchNorm(momentum=0.01)(images)  # [8, 3, 32, 32]",
    "Sequential": """network = nn.Sequential(nn.flatten, nn.Dense(64, "relu"), nn.Dense(10))
logits = network(images)  # [8, 10]""",
    "Dropout": "out = nn.Dropout(0.1)(x)  # [8, 16]",
}

ACTIVATIONS = {
    "relu": "",
    "relu6": "",
    "leaky_relu": "out = nn.leaky_relu(x, negative_slope=0.1)  # [8, 16]",
    "elu": "out = nn.elu(x, alpha=0.5)  # [8, 16]",
    "selu": "",
    "gelu": "out = nn.gelu(x, approximate=True)  # [8, 16]",
    "gelu_tanh": "",
    "silu": "",
    "sigmoid": "",
    "tanh": "",
    "softplus": "",
    "softshrink": "out = nn.softshrink(x, lambd=0.1)  # [8, 16]",
}

_UNARY = (
    "exp log log1p sin cos tan asin acos atan sinh cosh asinh acosh atanh expm1 "
    "floor ceil trunc round sqrt rsqrt reciprocal abs sign"
)
FUNCTIONS = {
    **dict.fromkeys(_UNARY.split(), ""),
    "atan2": "angle = nn.atan2(y, x)  # [8, 16]",
    "floor_divide": "out = nn.floor_divide(tokens, 2)  # [8, 12]",
    "remainder": "out = nn.remainder(tokens, 5)  # [8, 12]",
    "fmod": "out = nn.fmod(x, y)  # [8, 16]",
    "pow": "out = nn.pow(x, 3)  # [8, 16]",
    "maximum": "out = nn.maximum(x, y)  # [8, 16]",
    "minimum": "out = nn.minimum(x, 1.0)  # [8, 16]",
    "clamp": "out = nn.clamp(x, min=-1.0, max=1.0)  # [8, 16]",
    "where": "out = nn.where(x > 0, x, 0.0)  # [8, 16]",
    "scaled_dot_product_attention": """key = value = query  # [8, 4, 12, 16]
out = nn.scaled_dot_product_attention(query, key, value, is_causal=True)  # [8, 4, 12, 16]""",
    "rotary_embedding": "rotated = nn.rotary_embedding(query, rotary_dim=8)  # [8, 4, 12, 16]",
    "softmax": "probabilities = nn.softmax(x)  # [8, 16]",
    "log_softmax": "out = nn.log_softmax(x)  # [8, 16]",
    "sum": "total = nn.sum(x, axis=1)  # [8]",
    "mean": """pooled = nn.mean(sequence, axis=1)  # [8, 64]
pixels = nn.mean(images, axis=(2, 3), keepdims=True)  # [8, 3, 1, 1]""",
    "amax": "out = nn.amax(images, axis=(2, 3))  # [8, 3]",
    "amin": "out = nn.amin(images, axis=(2, 3))  # [8, 3]",
    "max": "out = nn.max(sequence, axis=1)  # [8, 64]",
    "min": "out = nn.min(sequence, axis=1)  # [8, 64]",
    "gather": "chosen = nn.gather(x, nn.reshape(labels, (8, 1)))  # [8, 1]",
    "index_select": """words = nn.Embedding(1000, 64)
vectors = words(tokens)  # [8, 12, 64]
rows = nn.index_select(words.embeddings, labels)  # [8, 64]""",
    "stack": "pair = nn.stack([x, y], axis=1)  # [8, 2, 16]",
    "sample_count": "per_sample = nn.sum(x * x) / nn.sample_count(x)  # []",
    "matmul": "products = nn.matmul(x, nn.transpose(sequence[0, :, :16]))  # [8, 12]",
    "reshape": "heads = nn.reshape(sequence, (8, 12, 4, -1))  # [8, 12, 4, 16]",
    "transpose": "out = nn.transpose(query, (0, 2, 1, 3))  # [8, 12, 4, 16]",
    "broadcast_to": "out = nn.broadcast_to(x[:, None, :], (8, 12, 16))  # [8, 12, 16]",
    "concatenate": "out = nn.concatenate([x, y], axis=1)  # [8, 32]",
    "flatten": "rows = nn.flatten(images)  # [8, 3072]",
    "argmax": "predicted = nn.argmax(x)  # [8]",
}

LOSSES = {
    "softmax_cross_entropy": """logits = nn.Dense(10)(x)  # [8, 10]
loss = nn.softmax_cross_entropy(logits, labels, label_smoothing=0.1)  # []""",
    "binary_cross_entropy": """logits = nn.Dense(1)(x)[:, 0]  # [8]
loss = nn.binary_cross_entropy(logits, clicked, pos_weight=5.0)  # []""",
    "mean_squared_error": "loss = nn.mean_squared_error(nn.Dense(16)(x), y)  # []",
    "mean_absolute_error": "loss = nn.mean_absolute_error(nn.Dense(16)(x), y)  # []",
    "huber": "loss = nn.huber(nn.Dense(16)(x), y, delta=0.5)  # []",
}

_LOSS = "loss = nn.mean_squared_error(nn.Dense(16)(x), y)  # []\n"
OPTIMIZERS = {
    "SGD": _LOSS + "train_op = nn.SGD(0.01, momentum=0.9).minimize(loss)",
    "Adam": _LOSS + "train_op = nn.Adam(1e-3, beta2=0.98).minimize(loss)",
    "AdamW": _LOSS
    + 'optimizer = nn.AdamW(1e-3, exclude_from_weight_decay=("bias",), clip_norm=1.0)\n'
    + "train_op = optimizer.minimize(loss)",
    "Lamb": _LOSS + "train_op = nn.Lamb(1e-3).minimize(loss)",
    "Adagrad": _LOSS + "train_op = nn.Adagrad(0.01).minimize(loss)",
    "RMSProp": _LOSS + "train_op = nn.RMSProp(1e-3, centered=True).minimize(loss)",
}

SCHEDULES = {
    "schedules.Constant": "rate = nn.schedules.Constant(1e-3, warmup_steps=100)",
    "schedules.Linear": "rate = nn.schedules.Linear(1e-3, steps=5000, end_learning_rate=1e-5)",
    "schedules.Cosine": """rate = nn.schedules.Cosine(1e-3, steps=5000, warmup_steps=100)
optimizer = nn.AdamW(rate)""",
    "schedules.Polynomial": "rate = nn.schedules.Polynomial(1e-3, steps=5000, power=2.0)",
    "schedules.Exponential": "rate = nn.schedules.Exponential(1e-3, steps=1000, decay_rate=0.5)",
    "schedules.PiecewiseConstant": """values = (0.1, 0.01, 0.001)
rate = nn.schedules.PiecewiseConstant(boundaries=(1000, 2000), values=values)""",
}

INITIALIZERS = {
    "initializers.glorot_uniform": (
        "out = nn.Dense(32, kernel_initializer=nn.initializers.glorot_uniform)(x)  # [8, 32]"
    ),
    "initializers.normal": (
        "out = nn.Dense(32, kernel_initializer=nn.initializers.normal(0.01))(x)  # [8, 32]"
    ),
    "initializers.zeros": (
        "out = nn.Dense(32, kernel_initializer=nn.initializers.zeros)(x)  # [8, 32]"
    ),
    "initializers.ones": (
        "out = nn.Dense(32, kernel_initializer=nn.initializers.ones)(x)  # [8, 32]"
    ),
}

METRICS = {
    "metrics.perplexity": """loss, labels = np.float32(0.7), np.array([1, 4, 4, -100])
perplexity = nn.metrics.perplexity(loss, labels)""",
    "metrics.accuracy": """labels, predictions = np.array([1, 4, 4, 2]), np.array([1, 4, 0, 2])
accuracy = nn.metrics.accuracy(labels, predictions)""",
    "summary.scalar": """nn.summary.scalar("mean_activation", x)""",
    "summary.histogram": """nn.summary.histogram("activations", x)""",
}

SECTIONS = {
    "Layers": LAYERS,
    "Activations": ACTIVATIONS,
    "Functions": FUNCTIONS,
    "Losses": LOSSES,
    "Optimizers": OPTIMIZERS,
    "Learning-rate schedules": SCHEDULES,
    "Initializers": INITIALIZERS,
    "Metrics and summaries": METRICS,
}
