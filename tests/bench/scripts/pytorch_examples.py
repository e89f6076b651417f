"""The examples of pytorch/examples."""

from case import Block, Case, Patch, Purpose, Repository
from patches import BACKWARD, four, module, session, setup

NAME = "pytorch/examples"
MNIST_SIZES = ("--batch-size", "8", "--test-batch-size", "8", "--epochs", "2")


def example(name: str, *more: str) -> Repository:
    return Repository(NAME, (f"{name}/main.py", *(f"{name}/{path}" for path in more)))


MNIST_LOADERS = (
    four(
        "train_loader = torch.utils.data.DataLoader(dataset1,**train_kwargs)", "cbtorch.dataloader"
    ),
    four(
        "test_loader = torch.utils.data.DataLoader(dataset2, **test_kwargs)", "cbtorch.dataloader"
    ),
)
EPOCHS = session(
    "    for epoch in range(1, args.epochs + 1):", "        scheduler.step()", "finish(model)"
)
CASES = (
    Case(
        "examples mnist", example("mnist"), "mnist/main.py", MNIST_SIZES,
        {"mnist/main.py": (
            setup(), BACKWARD, *MNIST_LOADERS, module("model = Net().to(device)"), EPOCHS,
        )},
    ),
    Case(
        "examples mnist_rnn", example("mnist_rnn"), "mnist_rnn/main.py", MNIST_SIZES,
        {"mnist_rnn/main.py": (
            setup(), BACKWARD, module("model = Net().to(device)"),
            Patch(
                "    optimizer = optim.Adadelta",
                "    train_loader = cbtorch.dataloader(train_loader)\n"
                "    test_loader = cbtorch.dataloader(test_loader)\n"
                "    optimizer = optim.Adadelta", Purpose.FOUR_LINES,
            ), EPOCHS,
        )},
    ),
    Case(
        "examples vae", example("vae"), "vae/main.py", ("--batch-size", "8", "--epochs", "2"),
        {"vae/main.py": (
            setup(), BACKWARD,
            Patch(
                "model = VAE().to(device)",
                "train_loader = cbtorch.dataloader(train_loader)\n"
                "test_loader = cbtorch.dataloader(test_loader)\n"
                "model = cbtorch.module(VAE().to(device))", Purpose.FOUR_LINES,
            ),
            session("    for epoch in range(1, args.epochs", "                       'results"),
        )},
        draws=True,
    ),
    Case(
        "examples dcgan", example("dcgan"), "dcgan/main.py",
        ("--dataset", "fake", "--imageSize", "64", "--batchSize", "8", "--ngf", "8", "--ndf", "8",
         "--niter", "2", "--manualSeed", "1", "--workers", "0", "--nz", "16"),
        {"dcgan/main.py": (
            setup(),
            Patch("shuffle=True, num_workers=int(opt.workers))",
                  "shuffle=True, num_workers=int(opt.workers))\n"
                  "dataloader = cbtorch.dataloader(dataloader)", Purpose.FOUR_LINES),
            Patch("criterion = nn.BCELoss()",
                  "netG, netD = cbtorch.module(netG), cbtorch.module(netD)\n"
                  "criterion = nn.BCELoss()", Purpose.FOUR_LINES),
            Patch("errG.backward()", "errG.backward(); record(errG)", Purpose.RECORD),
            Patch("for epoch in range(opt.niter):",
                  "session = cbtorch.Session([netD, netG], [optimizerD, optimizerG])\n"
                  "session.__enter__()\n"
                  "for epoch in range(opt.niter):", Purpose.FOUR_LINES),
            Patch("    # do checkpointing",
                  "    if epoch + 1 == opt.niter:\n"
                  "        session.__exit__(None, None, None)\n"
                  "        finish(netG, netD)", Purpose.FOUR_LINES),
        )},
    ),
    Case(
        "examples siamese_network", example("siamese_network"), "siamese_network/main.py",
        MNIST_SIZES,
        {"siamese_network/main.py": (
            setup(), BACKWARD, module("model = SiameseNetwork().to(device)"),
            four("train_loader = torch.utils.data.DataLoader(train_dataset,**train_kwargs)",
                 "cbtorch.dataloader"),
            four("test_loader = torch.utils.data.DataLoader(test_dataset, **test_kwargs)",
                 "cbtorch.dataloader"),
            Patch("train_dataset = APP", "random.seed(1); train_dataset = APP"),
            EPOCHS,
        )},
        requirements=("timm", "pillow"), draws=True,
    ),
    Case(
        "examples imagenet resnet18", example("imagenet"), "imagenet/main.py",
        ("--batch-size", "8", "--epochs", "2", "--no-accel", "--workers", "0"),
        {"imagenet/main.py": (
            setup(), BACKWARD,
            Patch("        model.to(device)\n", "        model.to(device)\n"
                  "    model = cbtorch.module(model)\n", Purpose.FOUR_LINES),
            Patch("    if args.evaluate:",
                  "    train_loader = cbtorch.dataloader(train_loader)\n"
                  "    val_loader = cbtorch.dataloader(val_loader)\n"
                  "    if args.evaluate:", Purpose.FOUR_LINES),
            session("    for epoch in range(args.start_epoch", "            }, is_best)"),
        )},
        requirements=("timm", "pillow"),
    ),
    Case(
        "examples super_resolution",
        example("super_resolution", "model.py"), "super_resolution/main.py",
        ("--upscale_factor", "2", "--batchSize", "8", "--testBatchSize", "8", "--threads", "0"),
        {"super_resolution/main.py": (
            setup(), BACKWARD, module("model = Net(upscale_factor=opt.upscale_factor).to(device)"),
            Patch("from data import get_training_set, get_test_set",
                  "from image_pairs import get_training_set, get_test_set"),
            Patch("print('===> Building model')",
                  "training_data_loader = cbtorch.dataloader(training_data_loader)\n"
                  "testing_data_loader = cbtorch.dataloader(testing_data_loader)",
                  Purpose.FOUR_LINES),
            session("for epoch in range(1, opt.nEpochs", "    checkpoint(epoch)"),
        )},
    ),
    Case(
        "examples time_sequence_prediction",
        Repository(NAME, ("time_sequence_prediction/train.py",)),
        "time_sequence_prediction/train.py", ("--steps", "1"),
        {"time_sequence_prediction/train.py": (
            setup(),
            Patch("import matplotlib\nmatplotlib.use('Agg')\n", ""),
            Patch("import matplotlib.pyplot as plt\n", ""),
            Patch("data = torch.load('traindata.pt')",
                  "data = np.sin((np.arange(40) + np.arange(11).reshape(-1, 1) * 7) / 20)"),
            Patch("seq.double()", "seq.double(); seq = cbtorch.module(seq)", Purpose.FOUR_LINES),
            Patch("            loss.backward()",
                  "            loss.backward(); record(loss)", Purpose.RECORD),
            session("    for i in range(opt.steps):", "        plt.close()",
                    "finish(seq)", "seq"),
            Patch("future = 1000", "future = 5"),
            Patch("y = pred.detach().numpy()", "y = pred.detach().numpy(); continue"),
        )},
    ),
    Case(
        "examples regression", example("regression"), "regression/main.py", (),
        {"regression/main.py": (
            setup(),
            Patch("POLY_DEGREE = 4", "torch.manual_seed(0)\nPOLY_DEGREE = 4"),
            Patch("fc = torch.nn.Linear(W_target.size(0), 1)",
                  "fc = cbtorch.module(torch.nn.Linear(W_target.size(0), 1))", Purpose.FOUR_LINES),
            Patch("    output.backward()", "    output.backward(); record(output)", Purpose.RECORD),
            Patch("    if loss < 1e-3:", "    if batch_idx == STEPS:"),
            Block('with cbtorch.Session([fc], [], mode="train"):',
                  "for batch_idx in count(1):", "        break", "finish(fc)"),
        )},
    ),
)  # fmt: skip

WORDS = "word_language_model"
GRAPH_SIZES = ("--epochs", "20", "--no-accel", "--dropout-p", "0")


def language_model(name: str, *more: str) -> Case:
    """word_language_model, whose windows come from `get_batch`."""
    sizes = (
        "--use-optimizer",
        "--lr",
        "0.001",
        "--emsize",
        "32",
        "--nhid",
        "32",
        "--bptt",
        "8",
        "--batch_size",
        "4",
        "--epochs",
        "2",
        "--dropout",
        "0",
        "--log-interval",
        "5",
    )
    return Case(
        f"examples {WORDS} {name}", example(WORDS, "model.py", "data.py"), f"{WORDS}/main.py",
        (*sizes, "--model", name, *more),
        {f"{WORDS}/main.py": (
            setup(),
            Patch("import data\n", "import data\nfrom synthetic import write_words\n"),
            Patch("corpus = data.Corpus(args.data)",
                  "write_words(args.data, STEPS // 2 * 32 + 4)\ncorpus = data.Corpus(args.data)"),
            Patch("criterion = nn.NLLLoss()",
                  "model = cbtorch.module(without_dropout(model))\ncriterion = nn.NLLLoss()",
                  Purpose.FOUR_LINES),
            BACKWARD,
            session("    for epoch in range(1, args.epochs+1):", "            lr /= 4.0"),
            Patch("# Load the best saved model.", "raise SystemExit"),
        )},
    )  # fmt: skip


def graph(name: str, model: str) -> Case:
    """gcn and gat: one full batch, of which the loss takes some rows."""
    return Case(
        f"examples {name}", example(name), f"{name}/main.py", GRAPH_SIZES,
        {f"{name}/main.py": (
            setup(),
            Patch("import requests\n", ""),
            Patch("with requests.get(cora_url, stream=True) as tgz_file:", "if False:")
            if name == "gcn" else
            Patch("    if os.path.isfile(os.path.join(path, 'cora.content'))",
                  "    if True or os.path.isfile(os.path.join(path, 'cora.content'))"),
            Patch("features, labels, adj_mat = load_cora(device=device)",
                  "from synthetic import make_graph\n"
                  f"    features, labels, adj_mat = make_graph(sparse={name == 'gcn'})"),
            BACKWARD,
            Patch(f"    optimizer = Adam({model}.parameters()",
                  f"    {model} = cbtorch.module({model})\n"
                  f"    optimizer = Adam({model}.parameters()", Purpose.FOUR_LINES),
            session("    for epoch in range(args.epochs):", "            break",
                    f"finish({model})", model),
        )},
    )  # fmt: skip


CASES += (
    language_model("LSTM"),
    language_model("Transformer"),
    graph("gcn", "gcn"),
    graph("gat", "gat_net"),
    Case(
        "examples language_translation",
        example("language_translation", "src/model.py", "src/data.py"),
        "language_translation/main.py",
        ("--epochs", "2", "--batch", "8", "--enc_layers", "1", "--dec_layers", "1",
         "--embed_size", "32", "--dim_feedforward", "32", "--attn_heads", "4", "--dropout", "0"),
        {
            "language_translation/main.py": (
                setup("import torch # For ML\n"), BACKWARD,
                Patch("= get_data(opts)", "= get_data(opts)\n"
                      "    train_dl = cbtorch.dataloader(train_dl)\n"
                      "    valid_dl = cbtorch.dataloader(valid_dl)", Purpose.FOUR_LINES),
                Patch('    logging.info("Model created',
                      "    model = cbtorch.module(model)\n"
                      '    logging.info("Model created', Purpose.FOUR_LINES),
                Patch("    best_val_loss = 1e6", "    best_val_loss, optimizer = 1e6, optim"),
                session("    for idx, epoch in enumerate(range(1,", "        logger.info(f\"Epoch"),
            ),
            "language_translation/src/data.py": (
                Patch("from torchtext.data.utils import get_tokenizer\n",
                      "from synthetic import Sentences, get_tokenizer\n"),
                Patch("from torchtext.vocab import build_vocab_from_iterator\n",
                      "from synthetic import build_vocab_from_iterator\n"),
                Patch("from torchtext.datasets import Multi30k, multi30k\n", ""),
                Patch('    multi30k.URL["train"] = ', '    urls = {}; urls["train"] = '),
                Patch('    multi30k.URL["valid"] = ', '    urls["valid"] = '),
                Patch("Multi30k(split", "Sentences(split"),
                Patch("Multi30k(split", "Sentences(split"),
            ),
        },
    ),
)  # fmt: skip
