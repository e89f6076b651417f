"""Scripts of techniques: GAN, U-Net, CRNN with CTC, SimCLR, VQ-VAE, mixture of experts, PINN."""

from case import Block, Case, Patch, Purpose, Repository
from patches import BACKWARD, setup

GAN = "tutorials/03-advanced/generative_adversarial_network/main.py"
UNET = ("train.py", "evaluate.py", "unet/__init__.py", "unet/unet_model.py", "unet/unet_parts.py",
        "utils/__init__.py", "utils/dice_score.py", "utils/data_loading.py")  # fmt: skip
SIMCLR = ("run.py", "simclr.py", "utils.py", "models/resnet_simclr.py", "exceptions/exceptions.py",
          "data_aug/contrastive_learning_dataset.py", "data_aug/view_generator.py",
          "data_aug/gaussian_blur.py")  # fmt: skip
CRNN = tuple(f"src/{name}.py" for name in ("train", "model", "evaluate", "config", "ctc_decoder"))
VQ = "examples/autoencoder.py"
CIFAR = ("main.py", "utils.py", *(f"models/{name}.py" for name in (
    "__init__", "vgg", "dpn", "lenet", "senet", "pnasnet", "densenet", "googlenet", "shufflenet",
    "shufflenetv2", "resnet", "resnext", "preact_resnet", "mobilenet", "mobilenetv2",
    "efficientnet", "regnet", "dla_simple", "dla",
)))  # fmt: skip
PINN = tuple(f"00_burgers/{name}.py" for name in (
    "main", "pinn", "parameters", "preparations", "icbc", "optimizers", "activations",
    "initializers",
))  # fmt: skip
SESSION = 'with cbtorch.Session(model, optimizer, mode="train"):'

CASES = (
    Case(
        "GAN", Repository("yunjey/pytorch-tutorial", (GAN,)), GAN, (),
        {GAN: (
            setup(),
            Patch("num_epochs = 200", "num_epochs = 2"),
            Patch("batch_size = 100", "batch_size = 8"),
            Patch("# Discriminator\n",
                  "data_loader = cbtorch.dataloader(data_loader)\n", Purpose.FOUR_LINES),
            Patch("D = D.to(device)\nG = G.to(device)\n",
                  "D = cbtorch.module(D.to(device))\nG = cbtorch.module(G.to(device))\n",
                  Purpose.FOUR_LINES),
            Patch("g_loss.backward()", "g_loss.backward(); record(g_loss)", Purpose.RECORD),
            Block('with cbtorch.Session([D, G], [d_optimizer, g_optimizer], mode="train"):',
                  "for epoch in range(num_epochs):",
                  "    save_image(denorm(fake_images)", "finish(D, G)"),
        )},
        requirements=("timm", "pillow"),
    ),
    Case(
        "U-Net", Repository("milesial/Pytorch-UNet", UNET), "train.py",
        ("--epochs", "2", "--batch-size", "4", "--validation", "20"),
        {"train.py": (
            setup(),
            Patch("import wandb\n", "from synthetic import Carvana, no_wandb as wandb\n"),
            Patch("dataset = CarvanaDataset(dir_img, dir_mask, img_scale)", "dataset = Carvana(4)"),
            Patch("images.to(device=device, dtype=torch.float32",
                  "images.to(device=device, dtype=torch.get_default_dtype()"),
            Patch("num_workers=os.cpu_count()", "num_workers=0"),
            Patch("drop_last=True, **loader_args)",
                  "drop_last=True, **loader_args)\n"
                  "    train_loader = cbtorch.dataloader(train_loader)\n"
                  "    val_loader = cbtorch.dataloader(val_loader)", Purpose.FOUR_LINES),
            Patch("    model.to(device=device)\n    try:",
                  "    model.to(device=device)\n    model = cbtorch.module(model)\n    try:",
                  Purpose.FOUR_LINES),
            Patch("grad_scaler.scale(loss).backward()",
                  "grad_scaler.scale(loss).backward(); record(loss)", Purpose.RECORD),
            Block(SESSION, "    for epoch in range(1, epochs + 1):",
                  "            logging.info(f'Checkpoint"),
        ), "evaluate.py": (
            Patch("image.to(device=device, dtype=torch.float32",
                  "image.to(device=device, dtype=torch.get_default_dtype()"),
        )},
        requirements=("timm", "pillow"),
    ),
    Case(
        "CRNN with CTC", Repository("GitYCC/crnn-pytorch", CRNN), "src/train.py", (),
        {
            "src/train.py": (
                setup(),
                Patch("import cv2\n", ""),
                Patch("from dataset import", "from synthetic import"),
                Patch("    crnn.to(device)\n",
                      "    crnn.to(device)\n    crnn = cbtorch.module(crnn)\n",
                      Purpose.FOUR_LINES),
                BACKWARD,
                Block('with cbtorch.Session(crnn, optimizer, mode="train"):',
                      "    for epoch in range(1,", "        print('train_loss", "finish(crnn)"),
            ),
            "src/evaluate.py": (Patch("from dataset import", "from synthetic import"),),
            "src/config.py": (
                Patch("'epochs': 10000", "'epochs': 2"),
                Patch("'train_batch_size': 32", "'train_batch_size': 4"),
                Patch("'cpu_workers': 4", "'cpu_workers': 0"),
                Patch("'rnn_hidden': 256", "'rnn_hidden': 32"),
            ),
        },
    ),
    Case(
        "SimCLR", Repository("sthalles/SimCLR", SIMCLR), "run.py",
        ("-dataset-name", "cifar10", "--epochs", "2", "--batch-size", "8", "--workers", "0",
         "--out_dim", "16", "--log-every-n-steps", "5"),
        {
            "run.py": (
                setup(),
                Patch("    with torch.cuda.device(args.gpu_index):", "    if True:"),
                Patch("    model = ResNetSimCLR(base_model=args.arch, out_dim=args.out_dim)",
                      "    torch.manual_seed(0)\n"
                      "    model = ResNetSimCLR(base_model=args.arch, out_dim=args.out_dim)\n"
                      "    model, train_loader = cbtorch.module(model), "
                      "cbtorch.dataloader(train_loader)", Purpose.FOUR_LINES),
            ),
            "simclr.py": (
                setup(),
                Patch("from torch.utils.tensorboard import SummaryWriter",
                      "from tensorboardX import SummaryWriter"),
                Patch("self.writer.log_dir", "self.writer.logdir"),
                Patch("save_config_file(self.writer.log_dir, self.args)", ""),
                Patch("filename=os.path.join(self.writer.log_dir,", "filename=os.path.join('.',"),
                Patch("saved at {self.writer.log_dir}", "saved"),
                Patch("scaler.scale(loss).backward()",
                      "scaler.scale(loss).backward(); record(loss)", Purpose.RECORD),
                Block('with cbtorch.Session(self.model, self.optimizer, mode="train"):',
                      "        for epoch_counter in range", "            logging.debug(f\"Epoch",
                      "finish(self.model)"),
            ),
            "data_aug/contrastive_learning_dataset.py": (
                Patch("from torchvision.transforms import transforms\n", ""),
                Patch("GaussianBlur(kernel_size=int(0.1 * size))",
                      "transforms.GaussianBlur(int(0.1 * size))"),
            ),
        },
        requirements=("timm", "pillow", "tensorboardX"),
    ),
    Case(
        "VQ-VAE", Repository("lucidrains/vector-quantize-pytorch", (VQ,)), VQ, (),
        {VQ: (
            setup(),
            Patch("import fire\n", ""),
            Patch("fire.Fire(train)", "train()"),
            Patch("train_iter = 1000", "train_iter = STEPS"),
            Patch("batch_size = 256", "batch_size = 8"),
            Patch("num_codes = 256", "num_codes = 32"),
            Patch("    opt = AdamW(", "    model = cbtorch.module(model)\n    opt = AdamW(",
                  Purpose.FOUR_LINES),
            Patch("    def iterate_dataset(",
                  "    train_dataset = cbtorch.dataloader(train_dataset)\n    def iterate_dataset(",
                  Purpose.FOUR_LINES),
            Patch("(rec_loss + alpha * cmt_loss).backward()",
                  "loss = rec_loss + alpha * cmt_loss; loss.backward(); record(loss)",
                  Purpose.RECORD),
            Block('with cbtorch.Session(model, opt, mode="train"):', "    for _ in pbar:",
                  "            f\"active %: {indices.unique().numel() / num_codes * 100:.3f}\"\n"
                  "        )"),
        )},
        requirements=("vector-quantize-pytorch", "einops", "einx", "timm", "pillow"),
    ),
    Case(
        "mixture of experts",
        Repository("davidmrau/mixture-of-experts", ("cifar10_example.py", "moe.py")),
        "cifar10_example.py", (),
        {"cifar10_example.py": (
            setup(),
            Patch("num_workers=2", "num_workers=0"),
            Patch("num_workers=2", "num_workers=0"),
            Patch("batch_size=64", "batch_size=8"),
            Patch("batch_size=64", "batch_size=8"),
            Patch("for epoch in range(1):", "for epoch in range(2):"),
            Patch("net = net.to(device)\n",
                  "net = cbtorch.module(net.to(device))\n"
                  "trainloader = cbtorch.dataloader(trainloader)\n"
                  "testloader = cbtorch.dataloader(testloader)\n", Purpose.FOUR_LINES),
            Patch("total_loss.backward()", "total_loss.backward(); record(total_loss)",
                  Purpose.RECORD),
            Block('with cbtorch.Session(net, optimizer, mode="train"):',
                  "for epoch in range(2):", "            running_loss = 0.0", "finish(net)"),
        )},
        requirements=("timm", "pillow"),
    ),
    Case(
        "PINN", Repository("ShotaDeguchi/PINN_Torch", PINN), "00_burgers/main.py", (),
        {
            "00_burgers/main.py": (
                Patch("import matplotlib.pyplot as plt\n", "import sys\n"),
                Patch("    plt.figure(figsize = (8, 4))\n    plt.plot",
                      "    sys.exit()\n    plt.plot"),
                Patch("pinn.to(device)", "pinn.to(device)\n    pinn = cbtorch.module(pinn)",
                      Purpose.FOUR_LINES),
                setup(),
            ),
            "00_burgers/parameters.py": (
                Patch("width = 2 ** 8", "width = 16"), Patch("int(1e5)", "20"),
            ),
            "00_burgers/pinn.py": (
                setup(),
                Patch("loss_trn.backward()", "loss_trn.backward(); record(loss_trn)",
                      Purpose.RECORD),
                Block('with cbtorch.Session([self], [self.optimzer], mode="train"):',
                      "        for ep in range(epoch):", "                break",
                      "finish(self)"),
            ),
        },
    ),
    *(
        Case(
            f"pytorch-cifar {name}", Repository("kuangliu/pytorch-cifar", CIFAR), "main.py", (),
            {"main.py": (
                setup(), BACKWARD,
                Patch("net = SimpleDLA()\n", f"torch.manual_seed(0)\nnet = {call}\n"),
                Patch("batch_size=128, shuffle=True, num_workers=2", "batch_size=8, shuffle=True"),
                Patch("batch_size=100, shuffle=False, num_workers=2", "batch_size=8"),
                Patch("net = net.to(device)",
                      "net = cbtorch.module(net.to(device))\n"
                      "trainloader = cbtorch.dataloader(trainloader)\n"
                      "testloader = cbtorch.dataloader(testloader)", Purpose.FOUR_LINES),
                Patch("from utils import progress_bar\n", "progress_bar = lambda *x: None\n"),
                Patch("start_epoch+200", "start_epoch+2"),
                Block('with cbtorch.Session(net, optimizer, mode="train"):',
                      "for epoch in range(start_epoch", "    scheduler.step()", "finish(net)"),
            )},
            requirements=("timm", "pillow"),
        )
        for name, call in (("LeNet", "LeNet()"), ("MobileNetV2", "MobileNetV2()"))
    ),
)  # fmt: skip
