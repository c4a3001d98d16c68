"""From scores to tokens: penalties, grammars, draws."""
