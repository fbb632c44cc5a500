"""Before the application: run a module of edge_tr in its place where edge_tr started it as a child.

``APPLICATION -m edge_tr.<module> ...`` is what ``edge_tr.machine.child_process`` starts.
"""


def _become_child() -> None:
    import sys

    if len(sys.argv) > 2 and sys.argv[1] == "-m" and sys.argv[2].startswith("edge_tr."):
        import os
        import runpy

        module = sys.argv[2]
        del sys.argv[1:3]
        code = 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys._edge_tr_children = True  # type: ignore[attr-defined]


_become_child()
