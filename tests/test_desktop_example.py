"""The desktop example in a window without a screen."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PySide6", reason="PySide6 is missing; `pip install edge-tr[desktop]`")
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
APP = Path(__file__).parents[1] / "examples" / "desktop" / "app.py"


def _wait(application: Any, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "nothing came in two minutes"
        application.processEvents()
        time.sleep(0.005)


def test_a_conversation_streams_stops_and_frees_its_model(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    spec = importlib.util.spec_from_file_location("desktop_app", APP)
    assert spec is not None
    assert spec.loader is not None
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    vars(app)["MAX_TOKENS"] = 3000
    application = app.QApplication.instance() or app.QApplication([])
    settings = app.QSettings(str(tmp_path / "kept.ini"), app.QSettings.Format.IniFormat)
    model = str(tiny_model("llama"))
    window = app.Window(settings, model)
    window.show()
    try:
        _wait(application, lambda: window.status.text() == "ready")
        window.entry.setText("Tell me about water.")
        window.send_button.click()
        _wait(application, lambda: "tokens/s" in window.status.text())
        assert window.stop_button.isEnabled()
        window.stop_button.click()
        _wait(application, window.send_button.isEnabled)
        assert window.messages[-1]["role"] == "assistant"
        assert 0 < window.worker.session.stats.n_tokens < 3000
        if shot := os.environ.get("EDGE_TR_SCREENSHOT"):
            assert window.grab().save(shot)
    finally:
        window.close()
    assert window.worker.session is None
    assert window.thread_of_model.isFinished()
    assert settings.value("model") == model


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="where settings lie")
def test_frozen_by_its_own_command_it_opens_a_model(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copy(APP, tmp_path)
    freeze = [sys.executable, "-m", "PyInstaller", "--log-level", "ERROR", "app.py"]
    subprocess.run(freeze, cwd=tmp_path, check=True)
    model, kept = str(tiny_model("llama")), tmp_path / "edge_tr" / "desktop.conf"
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen([tmp_path / "dist/app/app", model], env=environment) as window:
        try:
            end = time.monotonic() + 120
            while not (kept.exists() and model in kept.read_text()):
                assert window.poll() is None
                assert time.monotonic() < end, "the model was not opened in two minutes"
                time.sleep(0.1)
        finally:
            window.terminate()
