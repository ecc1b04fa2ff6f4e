

# Rich output.

MAX_JSON = 1 << 20  # of a dict or a list that is a result
SKIPPED = (type(None), bool, int, float, complex, str, bytes, type)
METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}
EXTENSIONS = {
    "text/plain": ".txt", "text/html": ".html", "text/markdown": ".md", "text/latex": ".tex",
    "image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg",
}


def module_of(value):
    return (getattr(type(value), "__module__", None) or "").split(".")[0]


def bundle(value):
    """Returns the representations of a value, what is said of them, and what
    made it."""
    data, meta, source = {}, {}, ""
    module = module_of(value)
    if module == "plotly" and hasattr(value, "to_plotly_json"):
        pass  # IPython would have it show itself, with all of plotly.js
    elif state.shell and not isinstance(value, SKIPPED):
        data, meta = state.shell.display_formatter.format(value)
        data, meta = dict(data), dict(meta)
    elif not isinstance(value, SKIPPED):
        data, meta = described(value)
    try:
        if module == "pandas" and type(value).__name__ in ("DataFrame", "Series"):
            source = "pandas"
            data.update(table(value))
        elif module == "plotly" and hasattr(value, "to_plotly_json"):
            source = "plotly"
            data["application/vnd.plotly.v1+json"] = loads(value.to_json())
            data["text/html"] = value.to_html(include_plotlyjs="cdn", full_html=False)
        elif module == "matplotlib" and hasattr(value, "savefig"):
            source = "matplotlib"
            data.update(figure(value))
            state.shown.add(id(value))
        elif os.environ.get("COVE_DATA") and isinstance(value, (dict, list)):
            data.update(as_json(value))
    except Exception as err:
        print("cove: %s could not be shown: %s" % (type(value).__name__, err), file=sys.stderr)
    if "text/plain" not in data:
        data["text/plain"] = repr(value)
    return data, meta, source


def described(value):
    data, meta = {}, {}
    kind = type(value)
    if hasattr(kind, "_repr_mimebundle_"):
        got = value._repr_mimebundle_()
        if isinstance(got, tuple):
            got, meta = got
        data.update(got or {})
    for name, mime in METHODS.items():
        if mime in data or not hasattr(kind, name):
            continue
        try:
            got = getattr(value, name)()
        except NotImplementedError:
            continue
        if isinstance(got, tuple):
            got, meta[mime] = got
        if got is not None:
            data[mime] = got
    return data, meta


def table(value):
    """Represents a pandas object; what is long is cut."""
    frame = value.to_frame() if type(value).__name__ == "Series" else value
    rows = loads(frame.head(1000).to_json(orient="split", date_format="iso", default_handler=str))
    columns = [str(c) if not isinstance(c, list) else " ".join(map(str, c)) for c in rows["columns"]]
    return {
        "text/html": frame._repr_html_() or "",
        "application/vnd.dataframe+json": {
            "columns": columns,
            "index": rows["index"],
            "records": [dict(zip(columns, r)) for r in rows["data"]],
            "dtypes": {n: str(t) for n, t in zip(columns, frame.dtypes)},
            "rows": int(frame.shape[0]),
            "truncated": int(frame.shape[0]) > 1000,
        },
    }


def figure(fig):
    """Draws a matplotlib figure in the formats of COVE_FIGURES: "png", or
    "png,svg"."""
    data = {}
    for name in os.environ.get("COVE_FIGURES", "png").split(","):
        to = io.BytesIO()
        if name.strip() == "svg":
            unpatched(fig)(to, format="svg", bbox_inches="tight")
            data["image/svg+xml"] = to.getvalue().decode()
        elif name.strip() == "png":
            unpatched(fig)(to, format="png", bbox_inches="tight")
            data["image/png"] = to.getvalue()
    if os.environ.get("COVE_DATA"):
        try:
            data["application/vnd.cove.chart+json"] = chart(fig)
        except Exception:
            pass  # a figure of a kind that is not known
    return data


def as_json(value):
    """A dict or a list as JSON, unless it is none, or long."""
    try:
        text = dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return {}
    return {"application/json": loads(text)} if len(text) <= MAX_JSON else {}


def unpatched(fig):
    save = getattr(type(fig).savefig, "__wrapped__", None)
    return fig.savefig if save is None else lambda *a, **k: save(fig, *a, **k)


def base64(data):
    import binascii

    return binascii.b2a_base64(data, newline=False).decode()


def keep(mime, data):
    """Leaves a representation that is too large in a file."""
    import tempfile

    where = "/tmp/cove-outputs"
    os.makedirs(where, exist_ok=True)
    fd, path = tempfile.mkstemp(EXTENSIONS.get(mime, ".json" if mime.endswith("json") else ".bin"), "output-", where)
    with open(fd, "wb") as f:
        f.write(data)
    os.chmod(path, 0o644)
    return path


def publish(data, meta=None, source="", result=False):
    if state.child:
        return
    state.outputs += 1
    if state.outputs > state.limits["outputs"]:
        if state.outputs == state.limits["outputs"] + 1:
            print("cove: more than %d outputs; the rest are not shown" % state.limits["outputs"], file=sys.stderr)
        return
    flush()
    texts, binary, files = {}, {}, {}
    room = state.limits["message_bytes"]
    for mime, value in data.items():
        if value is None:
            continue
        mime = str(mime)
        if mime == "application/json" or mime.endswith("+json"):
            try:
                value = dumps(value, allow_nan=False)
            except (TypeError, ValueError):
                value = dumps(loads(dumps(value, default=str), parse_constant=lambda c: None))
        elif mime.startswith("image/") and mime != "image/svg+xml" and isinstance(value, str):
            import binascii

            value = binascii.a2b_base64(value)
        raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")
        if len(raw) > min(state.limits["output_bytes"], state.bytes_left, room):
            files[mime] = keep(mime, raw)
            continue
        state.bytes_left -= len(raw)
        room -= len(raw)
        if isinstance(value, bytes) or len(raw) > state.limits["text_bytes"]:
            binary[mime] = base64(raw)
        else:
            texts[mime] = raw.decode()
    meta = {str(m): dumps(v, default=str) for m, v in (meta or {}).items()}
    send({"t": "rich", "run": state.run, "result": result, "data": texts, "binary": binary,
          "meta": meta, "files": files, "source": source}, acknowledged=True)


def display(*values, include=None, exclude=None, metadata=None, raw=False, **_):
    """Shows values in the richest way they know."""
    for value in values:
        data, meta, source = (dict(value), {}, "") if raw else bundle(value)
        publish(data, {**meta, **(metadata or {})}, source)


def displayhook(value):
    if value is None:
        return
    builtins._ = value
    data, meta, source = bundle(value)
    publish(data, meta, source, result=True)


# matplotlib: figures are shown when they are asked for or left open.


class Finder:
    """Changes pyplot as it is imported, so that it is not imported for that."""

    def find_spec(self, name, path=None, target=None):
        if name != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                adopt(module)

            spec.loader.exec_module = exec_module
        return spec


def adopt(plt):
    import functools

    kind = plt.Figure
    save = kind.savefig

    @functools.wraps(save)
    def savefig(self, fname, *args, **kwargs):
        done = save(self, fname, *args, **kwargs)
        if isinstance(fname, (str, os.PathLike)) and not state.child:
            state.asked[id(self)] = os.path.abspath(os.fspath(fname))
        return done

    kind.savefig = savefig
    kind.show = lambda self, *a, **k: display(self)
    plt.show = lambda *a, **k: show_figures(plt)


def show_figures(plt):
    for number in plt.get_fignums():
        fig = plt.figure(number)
        if fig.get_axes() or fig.texts or fig.images:
            meta = {}
            if id(fig) in state.asked:
                meta = {"image/png": {"filename": state.asked[id(fig)]}}
            data, more, source = bundle(fig)
            data["text/plain"] = repr(fig)
            publish(data, {**more, **meta}, source)
    plt.close("all")


def show_left():
    """Shows the figures that the code has left open, and the files of those
    that it has saved and closed."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None or not hasattr(plt, "get_fignums"):
        return
    asked = dict(state.asked)
    for number in plt.get_fignums():
        fig = plt.figure(number)
        asked.pop(id(fig), None)
        if id(fig) in state.shown:
            plt.close(fig)
    show_figures(plt)
    for known, path in asked.items():
        mime = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}.get(os.path.splitext(path)[1])
        if known in state.shown or not mime:
            continue
        try:
            with open(path, "rb") as f:
                data = f.read(state.limits["output_bytes"] + 1)
        except OSError:
            continue
        if len(data) <= state.limits["output_bytes"]:
            publish({mime: data if mime != "image/svg+xml" else data.decode("utf-8", "replace")},
                    {mime: {"filename": path}}, "matplotlib")
