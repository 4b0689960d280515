"""Records of conversations to samples in which only the answers are supervised."""
