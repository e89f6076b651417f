"""Operations of a loop on gradients."""
