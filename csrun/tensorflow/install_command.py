"""How TensorFlow is installed, as messages say it."""

INSTALL = "pip install 'tensorflow-cpu==2.21.*' 'tf-keras==2.21.*'"
