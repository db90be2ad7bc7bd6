"""What is decoded: the language-model protocol and the models that fulfil it."""
