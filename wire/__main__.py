"""`python -m wire`: write the generated headers anew."""

from wire.generate import outputs

for path, text in outputs().items():
    path.write_text(text)
    print(f"wrote {path}")
