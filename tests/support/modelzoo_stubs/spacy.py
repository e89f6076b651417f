"""Stand-in of spacy, which is imported and not used."""
