"""`python -m wire`: regenerate the headers."""

from wire.generate import outputs

for path, text in outputs().items():
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")
