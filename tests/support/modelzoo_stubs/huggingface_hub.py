"""Names of huggingface_hub that modules of the Model Zoo import and do not use here."""


class HfApi:
    pass


class HfFolder:
    pass


class Repository:
    pass
