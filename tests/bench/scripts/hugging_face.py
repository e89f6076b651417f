"""Models of transformers in the training loop of Hugging Face's course."""

from case import Case, Package

TRANSFORMERS = Package("transformers")
MODELS = (
    "GPT2LMHeadModel",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "RobertaForMaskedLM",
    "DistilBertForSequenceClassification",
    "ElectraForPreTraining",
    "AlbertForMaskedLM",
    "DebertaV2ForSequenceClassification",
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Gemma2ForCausalLM",
    "GPTNeoXForCausalLM",
    "OPTForCausalLM",
    "BloomForCausalLM",
    "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
    "CLIPModel",
    "ViTForImageClassification",
    "SwinForImageClassification",
    "ResNetForImageClassification",
    "ConvNextForImageClassification",
    "MobileNetV2ForImageClassification",
    "MambaForCausalLM",
    "Wav2Vec2ForSequenceClassification",
)
CASES = tuple(Case(f"HF {name}", TRANSFORMERS, "loops/hf_course.py", (name,)) for name in MODELS)
