"""Command that installs TensorFlow, for messages."""

INSTALL = "pip install 'tensorflow-cpu==2.21.*' 'tf-keras==2.21.*'"
