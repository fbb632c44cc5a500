"""A small conversation window over edge_tr: copy it and make it yours."""

from __future__ import annotations

import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QSettings, QThread, Signal
from PySide6.QtGui import QCloseEvent, QTextCursor
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QFileDialog,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QMainWindow,
    QPlainTextEdit,
    QProgressBar,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from edge_tr import models
from edge_tr.answer import AnswerConfig
from edge_tr.errors import CancelledError
from edge_tr.session import Session

MAX_TOKENS = 512


class Worker(QObject):
    """Owns the model; its slots run in a thread of their own, ``stop`` in any thread."""

    line = Signal(str)
    opened = Signal(str)
    piece = Signal(str, str)
    ended = Signal(str)
    failed = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.session: Session | None = None
        self.stopped = threading.Event()

    def open(self, model: str) -> None:
        """Open a file, or a model of the catalogue, which is brought where it is missing."""
        try:
            self.close()
            file = model if Path(model).is_file() else models.path(model, self.line.emit)
            self.line.emit("opening the model")
            self.session = Session(file, progress=self.line.emit)
        except Exception as error:
            self.failed.emit(str(error))
        else:
            self.opened.emit(model)

    def answer(self, messages: list[dict[str, Any]]) -> None:
        """Generate, and hand each piece of text to the window."""
        answer = None
        try:
            assert self.session is not None
            prompt = self.session.model.chat_tokens(messages)
            answer = self.session.answer(prompt, AnswerConfig(max_tokens=MAX_TOKENS))
            if self.stopped.is_set():
                raise CancelledError("stopped before it began")
            begin = time.monotonic()
            for piece in answer:
                stats = answer.stats
                rate = stats.n_tokens / max(time.monotonic() - begin, 1e-3)
                figures = f"{rate:.1f} tokens/s, {stats.n_accepted} of {stats.n_tokens} drafted"
                self.piece.emit(piece.text, figures)
        except CancelledError:
            pass  # what came until then stays
        except Exception as error:
            self.failed.emit(str(error))
            return
        self.ended.emit("" if answer is None else answer.text)

    def stop(self) -> None:
        """End the running answer, or the one that was just asked for."""
        self.stopped.set()
        session = self.session
        if session is not None:
            session.cancel()

    def close(self) -> None:
        """Free the model."""
        session, self.session = self.session, None
        if session is not None:
            session.close()


class Window(QMainWindow):
    """The conversation, the chooser above it, and the line to write in below."""

    open_model = Signal(str)
    ask = Signal(object)

    def __init__(self, settings: QSettings, model: str | None = None) -> None:
        super().__init__()
        self.setWindowTitle("edge_tr")
        self.settings = settings
        self.messages: list[dict[str, Any]] = []
        self._build()
        self._start_worker()
        self.resize(640, 480)
        if geometry := settings.value("geometry"):
            self.restoreGeometry(geometry)
        self._open(model or str(settings.value("model", models.DEFAULT)))

    def _build(self) -> None:
        self.chooser, self.browse = QComboBox(), QPushButton("File ...")
        self.chooser.addItems([e.name for e in models.available() if e.kind in _KINDS])
        self.bar, self.status = QProgressBar(), QLabel()
        self.view, self.entry = QPlainTextEdit(readOnly=True), QLineEdit()
        self.send_button, self.stop_button = QPushButton("Send"), QPushButton("Stop")
        box = QVBoxLayout()
        for row in (
            (self.chooser, self.browse),
            (self.bar,),
            (self.view,),
            (self.entry, self.send_button, self.stop_button),
            (self.status,),
        ):
            line = QHBoxLayout()
            for widget in row:
                line.addWidget(widget)
            box.addLayout(line)
        central = QWidget()
        central.setLayout(box)
        self.setCentralWidget(central)
        self.chooser.textActivated.connect(self._open)
        self.browse.clicked.connect(self._choose_file)
        self.entry.returnPressed.connect(self.send)
        self.send_button.clicked.connect(self.send)
        self.stop_button.clicked.connect(lambda: self.worker.stop())

    def _start_worker(self) -> None:
        self.worker, self.thread_of_model = Worker(), QThread()
        self.worker.moveToThread(self.thread_of_model)
        self.open_model.connect(self.worker.open)
        self.ask.connect(self.worker.answer)
        self.worker.line.connect(self._line)
        self.worker.opened.connect(self._opened)
        self.worker.piece.connect(self._piece)
        self.worker.ended.connect(self._ended)
        self.worker.failed.connect(self._failed)
        self.thread_of_model.start()

    def _set_state(self, *, opening: bool = False, answering: bool = False) -> None:
        is_idle = not (opening or answering)
        for widget in (self.chooser, self.browse, self.send_button):
            widget.setEnabled(is_idle)
        self.stop_button.setEnabled(answering)
        self.bar.setVisible(opening)
        self.bar.setRange(0, 0)  # how much is left is not known

    def _choose_file(self) -> None:
        file, _ = QFileDialog.getOpenFileName(self, "Open a model", "", "GGUF (*.gguf)")
        if file:
            self._open(file)

    def _open(self, model: str) -> None:
        if self.chooser.findText(model) < 0:
            self.chooser.addItem(model)
        self.chooser.setCurrentText(model)
        self._set_state(opening=True)
        self.open_model.emit(model)

    def _line(self, line: str) -> None:
        self.status.setText(line)
        percent = re.search(r"(\d+) %$", line)  # a download tells how far it is
        self.bar.setRange(0, 100 if percent else 0)
        if percent:
            self.bar.setValue(int(percent[1]))

    def _opened(self, model: str) -> None:
        self.settings.setValue("model", model)
        self.messages.clear()
        self.view.clear()
        self.status.setText("ready")
        self._set_state()

    def send(self) -> None:
        """Ask what is in the line."""
        text = self.entry.text().strip()
        if not text or not self.send_button.isEnabled() or self.worker.session is None:
            return
        self.entry.clear()
        self.messages.append({"role": "user", "content": text})
        self._add(f"You: {text}\n\nModel: ")
        self._set_state(answering=True)
        self.worker.stopped.clear()
        self.ask.emit(list(self.messages))

    def _add(self, text: str) -> None:
        self.view.moveCursor(QTextCursor.MoveOperation.End)
        self.view.insertPlainText(text)

    def _piece(self, text: str, figures: str) -> None:
        self._add(text)
        self.status.setText(figures)

    def _ended(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})
        self._add("\n\n")
        self._set_state()

    def _failed(self, reason: str) -> None:
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()
        self.status.setText(reason)
        self._set_state()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Stop, wait for the thread, free the model; a download is waited for."""
        self.settings.setValue("geometry", self.saveGeometry())
        self.worker.stop()
        self.thread_of_model.quit()
        self.thread_of_model.wait()
        self.worker.close()
        event.accept()


_KINDS = ("shipped", "quantised")


def main() -> int:
    """Show the window until it is closed."""
    application = QApplication(sys.argv)
    window = Window(QSettings("edge_tr", "desktop"), sys.argv[1] if sys.argv[1:] else None)
    window.show()
    return int(application.exec())


if __name__ == "__main__":
    sys.exit(main())
