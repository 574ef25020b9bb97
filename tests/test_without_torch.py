"""Without PyTorch, an optional dependency, `undertow.torch` raises an error with the command to install it."""

import subprocess
import sys


def test_the_error_without_torch_gives_the_command_to_install_it():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import undertow; undertow.Problem\n"
        "try:\n    import undertow.torch\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'undertow[torch]'" in done.stdout
