"""Names that are imported and not used."""


class Tokenizer:
    pass


def text_to_word_sequence(text):
    return text.lower().split()
