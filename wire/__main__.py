"""`python -m wire`: regenerate the headers."""

import sys

from machine.errors import BadInput
from wire import DEFINITION
from wire.definition import check_definition

try:
    check_definition(DEFINITION)
except BadInput as error:
    sys.exit(str(error))

from wire.generate import outputs  # reads the definition

for path, text in outputs().items():
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}")
