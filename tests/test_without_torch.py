"""PyTorch is an extra: without it undertow works, and its bridge says what to install."""

import subprocess
import sys


def test_without_torch_the_bridge_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import undertow; undertow.Problem\n"
        "try:\n    import undertow.torch\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'undertow[torch]'" in done.stdout
