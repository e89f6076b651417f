"""Models and trainers of PyPI's packages in their documented loops."""

from case import Case, Package

TIMM = ("timm", "pillow")
HF = ("transformers",)
ACCELERATE = ("accelerate",)
CASES = (
    Case("HF Trainer", Package("transformers"), "loops/hf_trainer.py", requirements=ACCELERATE),
    Case("accelerate", Package("accelerate"), "loops/accelerate_loop.py", requirements=HF),
    Case("peft LoRA", Package("peft"), "loops/peft_lora.py", requirements=HF),
    Case(
        "vit-pytorch ViT", Package("vit-pytorch"), "loops/images_readme.py", ("vit",),
        requirements=("einops", *TIMM),
    ),
    Case(
        "vit-pytorch CCT of videos", Package("vit-pytorch"), "loops/images_readme.py", ("cct-3d",),
        requirements=("einops", *TIMM),
    ),
    Case(
        "timm resnet18", Package("timm"), "loops/images_readme.py", ("timm-resnet18",),
        requirements=TIMM,
    ),
    *(
        Case(
            f"x-transformers {name}", Package("x-transformers"), "loops/x_transformers_readme.py",
            (option,),
        )
        for name, option in (("rotary", "rotary_pos_emb"), ("ALiBi", "alibi_pos_bias"))
    ),
    Case(
        "BYOL", Package("byol-pytorch"), "loops/byol_readme.py",
        requirements=("einops", "beartype", *TIMM), draws=True,
    ),
    Case(
        "DDPM", Package("denoising-diffusion-pytorch"), "loops/ddpm_readme.py",
        requirements=("einops", "ema-pytorch", "accelerate", *TIMM), draws=True,
    ),
)  # fmt: skip
