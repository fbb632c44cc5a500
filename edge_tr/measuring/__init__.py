"""Steps that are taken only to measure them: costs, bit-equal widths, equality of texts."""
