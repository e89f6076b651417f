"""nanoGPT, minGPT and makemore."""

from case import Block, Case, Patch, Purpose, Repository
from patches import four, setup

NANO = Repository("karpathy/nanoGPT", ("train.py", "model.py", "configurator.py"))
NANO_SIZES = (
    "--device=cpu", "--compile=False", "--dtype=float32", "--dataset=.", "--eval_interval=10",
    "--eval_iters=2", "--batch_size=4", "--block_size=16", "--n_layer=2", "--n_head=2",
    "--n_embd=32", "--gradient_accumulation_steps=1", "--warmup_iters=4", "--lr_decay_iters=20",
)  # fmt: skip
NANO_PATCHES = (
    setup(),
    Patch(
        "# poor man's data loader",
        "for name, size in (('train', 4000), ('val', 1000)):\n"  # by each task of a job
        "    tokens = np.random.RandomState(size).randint(0, 60, size).astype(np.uint16)\n"
        "    tokens.tofile(f'{name}.{os.getpid()}')\n"
        "    os.replace(f'{name}.{os.getpid()}', f'{name}.bin')\n"
        "os.makedirs('data', exist_ok=True)\n"
        "# poor man's data loader",
    ),
    Patch("data_dir = os.path.join('data', dataset)", "data_dir = '.'"),
    Patch("max_iters = 600000", "max_iters = STEPS - 1"),
    Patch("else 50304\n", "else 64\n"),
    Patch("model.to(device)\n", "model.to(device)\nmodel = cbtorch.module(model)\n",
          Purpose.FOUR_LINES),
    Patch("scaler.scale(loss).backward()", "scaler.scale(loss).backward(); record(loss)",
          Purpose.RECORD),
    Block('with cbtorch.Session(model, optimizer, mode="train"):', "while True:",
          "    if iter_num > max_iters:\n        break", "finish(model)"),
)  # fmt: skip

MIN = Repository(
    "karpathy/minGPT",
    ("projects/chargpt/chargpt.py", "mingpt/__init__.py", "mingpt/model.py", "mingpt/trainer.py",
     "mingpt/utils.py"),
)  # fmt: skip
MIN_PATCHES = {
    "projects/chargpt/chargpt.py": (
        setup(),
        Patch("    text = open('input.txt', 'r').read()",
              "    text = 'O God, O God! to be or not to be that is the question ' * 50"),
        Patch("    model = GPT(config.model)", "    model = cbtorch.module(GPT(config.model))",
              Purpose.FOUR_LINES),
        Patch("    trainer.run()", "    trainer.run()\n    finish(model)", Purpose.RECORD),
    ),
    "mingpt/trainer.py": (
        setup(),
        Patch("        model.train()\n",
              "        train_loader = cbtorch.dataloader(train_loader)\n        model.train()\n",
              Purpose.FOUR_LINES),
        Patch("self.loss.backward()", "self.loss.backward(); record(self.loss)", Purpose.RECORD),
        Block('with cbtorch.Session(model, self.optimizer, mode="train"):',
              "        data_iter = iter(train_loader)", "                break", "pass"),
    ),
}  # fmt: skip

MORE = Repository("karpathy/makemore", ("makemore.py", "names.txt"))
MORE_PATCHES = (
    setup(),
    Patch("from torch.utils.tensorboard import SummaryWriter",
          "from tensorboardX import SummaryWriter"),
    Patch("step > 0 and step % 500 == 0", "step > 0 and step % 10 == 0"),
    Patch("step > 0 and step % 200 == 0", "step > 0 and step % 15 == 0"),
    Patch("    model.to(args.device)\n",
          "    model.to(args.device)\n    model = cbtorch.module(model)\n", Purpose.FOUR_LINES),
    four("self.train_loader = DataLoader(dataset, sampler=train_sampler, **kwargs)",
         "cbtorch.dataloader"),
    Patch("loss.backward()", "loss.backward(); record(loss)", Purpose.RECORD),
    Block('with cbtorch.Session(model, optimizer, mode="train"):', "    while True:",
          "            break", "finish(model)"),
)  # fmt: skip
MORE_SIZES = ("--max-steps", "20", "--num-workers", "0", "--batch-size", "8", "--n-layer", "2")
MORE_TYPES = ("transformer", "mlp", "rnn", "gru", "bow")

CASES = (
    Case("nanoGPT train.py", NANO, "train.py", NANO_SIZES, {"train.py": NANO_PATCHES}),
    Case(
        "minGPT chargpt", MIN, "projects/chargpt/chargpt.py",
        ("--model.model_type=gpt-nano", "--data.block_size=16", "--trainer.max_iters=20",
         "--trainer.batch_size=8", "--trainer.num_workers=0", "--model.embd_pdrop=0.0",
         "--model.resid_pdrop=0.0", "--model.attn_pdrop=0.0"),
        MIN_PATCHES,
    ),
    *(
        Case(f"makemore {kind}", MORE, "makemore.py", (*MORE_SIZES, "--type", kind),
             {"makemore.py": MORE_PATCHES}, requirements=("tensorboardX",))
        for kind in MORE_TYPES
    ),
)  # fmt: skip
