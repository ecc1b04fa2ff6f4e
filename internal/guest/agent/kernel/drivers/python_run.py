

# Standard input.


class NoInput(io.TextIOBase):
    """Stands for a standard input that was not given."""

    encoding = "utf-8"
    errors = "strict"
    name = "<stdin>"
    mode = "r"

    def refuse(self, *_):
        raise EOFError("this code has no standard input; pass stdin")

    read = readline = readlines = __next__ = refuse

    def fileno(self):
        return 0

    def readable(self):
        return True

    def isatty(self):
        return False

    def close(self):
        pass  # as exit() does

    @property
    def buffer(self):
        return self


def give_input(text):
    if text is None:
        sys.stdin = NoInput()
        return
    import binascii

    fd = os.memfd_create("stdin") if hasattr(os, "memfd_create") else None
    if fd is None:
        import tempfile

        file = tempfile.TemporaryFile()
        fd = os.dup(file.fileno())
    rest = memoryview(binascii.a2b_base64(text))
    while rest:
        rest = rest[os.write(fd, rest):]
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    raw_close(fd)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)


def mend_streams():
    """Gives back standard streams that earlier code has closed."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.dup2(STDIO[fd], fd)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            stream = open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, "__%s__" % name, stream)


# Errors.


def clean(report, seen=None):
    """Takes frames that are not the user's out of a report."""
    seen = seen if seen is not None else set()
    if report is None or id(report) in seen:
        return
    seen.add(id(report))
    frames = [f for f in report.stack if f.filename != OWN]
    while frames and "/IPython/" in frames[0].filename:
        frames.pop(0)
    report.stack[:] = frames
    for other in (report.__cause__, report.__context__, *(getattr(report, "exceptions", None) or ())):
        clean(other, seen)


def describe(err):
    name = type(err).__name__
    try:
        message = str(err)
    except BaseException:
        message = "<no message: str() of the exception failed>"
    if isinstance(err, SyntaxError) and err.msg:
        message = "%s (line %s)" % (err.msg, err.lineno)
    try:
        report = traceback.TracebackException.from_exception(err)
        clean(report)
        text = "".join(report.format())
    except BaseException:
        text = "%s: %s\n" % (name, message)
    if len(text) > MAX_TRACEBACK:
        text = text[: MAX_TRACEBACK // 2] + "\n[...]\n" + text[-MAX_TRACEBACK // 2:]
    return {"name": name, "message": message[:MAX_TRACEBACK], "traceback": text.rstrip("\n")}


def verdict(err):
    """Says what an exception that was not caught means."""
    if err is None:
        return {"exit": 0}
    if isinstance(err, SystemExit):
        code = err.code
        if code is None or isinstance(code, int):
            return {"exit": (code or 0) & 0xFF}
        print(code, file=sys.stderr)
        return {"exit": 1}
    if isinstance(err, KeyboardInterrupt):
        return {"exit": 130, "interrupted": True, "error": describe(err)}
    return {"exit": 1, "error": describe(err)}


# Running.


def await_it(coroutine):
    import asyncio

    if state.loop is None or state.loop.is_closed():
        state.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(state.loop)
    task = state.loop.create_task(coroutine)
    try:
        return state.loop.run_until_complete(task)
    except BaseException:
        if not task.done():
            task.cancel()
            try:
                state.loop.run_until_complete(task)
            except BaseException:
                pass
        raise


def execute(code, name):
    """Runs code as a notebook does and returns what it raised."""
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    try:
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | state.flags, dont_inherit=True)
        steps = [(tree, "exec")]
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            steps.append((ast.Expression(tree.body.pop().value), "eval"))
        steps = [compile(t, name, mode, state.flags, dont_inherit=True) for t, mode in steps]
        import __future__

        for feature in __future__.all_feature_names:
            state.flags |= steps[0].co_flags & getattr(__future__, feature).compiler_flag
        value = None
        for step in steps:
            value = eval(step, main.__dict__)
            if step.co_flags & 0x80:  # a coroutine
                value = await_it(value)
        if len(steps) == 2:
            sys.displayhook(value)
    except BaseException as err:
        return err
    return None


def execute_in_shell(code, name):
    state.shell.compile.cove_name = name
    state.quiet = code.rstrip().endswith(";")
    hook = sys.displayhook
    if hook is not displayhook:
        state.shell.displayhook.other = hook
    done = state.shell.run_cell(code, store_history=False)
    return done.error_before_exec or done.error_in_exec


def make_shell():
    """Makes IPython's shell, where there is one."""
    import importlib.util

    if os.environ.get("COVE_NO_IPYTHON") or importlib.util.find_spec("IPython") is None:
        return None
    scratch = None
    if "IPYTHONDIR" not in os.environ:
        import tempfile

        scratch = os.environ["IPYTHONDIR"] = tempfile.mkdtemp("", "cove-ipython-")
    try:
        from IPython.core.autocall import ExitAutocall
        from IPython.core.compilerop import CachingCompiler
        from IPython.core.displayhook import DisplayHook
        from IPython.core.displaypub import DisplayPublisher
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets import Type
        from traitlets.config import Config

        class Compiler(CachingCompiler):
            cove_name = "<cell>"

            def get_code_name(self, raw_code, transformed_code, number):
                return self.cove_name

        class Leave(ExitAutocall):
            def __call__(self, code=None):
                raise SystemExit(code)

        class Hook(DisplayHook):
            other = None

            def quiet(self):
                return state.quiet

            def __call__(self, result=None):
                if result is None or self.quiet():
                    return
                self.shell.user_ns["_"] = result
                (self.other or displayhook)(result)

        class Publisher(DisplayPublisher):
            def publish(self, data, metadata=None, **_):
                publish(data, metadata)

            def clear_output(self, wait=False):
                pass

        class Shell(InteractiveShell):
            displayhook_class = Type(Hook)
            display_pub_class = Type(Publisher)
            compiler_class = Type(Compiler)

            def init_display_pub(self):
                self.display_pub = Publisher(parent=self, shell=self)

            def enable_gui(self, gui=None):
                pass

            def showtraceback(self, *args, **kwargs):
                pass  # the run's result has it

            showsyntaxerror = showindentationerror = _showtraceback = showtraceback

            def system(self, command):
                self.system_raw(self.var_expand(command, depth=1))

            def ask_exit(self):
                pass

        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryAccessor.enabled = False
        config.InteractiveShell.colors = "NoColor"
        shell = Shell.instance(config=config, user_module=main, user_ns=main.__dict__)
        main.exit = main.quit = Leave(shell)
        # IPython's advice for people at a terminal, when code calls sys.exit.
        import warnings

        warnings.filterwarnings("ignore", "To exit: use", UserWarning)
        shell.display_formatter.formatters["image/png"].for_type_by_name(
            "matplotlib.figure", "Figure", lambda fig: figure(fig).get("image/png"))
        return shell
    except Exception as err:
        print("cove: IPython does not start (%s: %s); plain Python is used" % (type(err).__name__, err), file=sys.stderr)
        return None
    finally:
        if scratch:
            # Its start is all that it is for: what is left would stay when the
            # interpreter is killed.
            import shutil

            os.environ.pop("IPYTHONDIR", None)
            shutil.rmtree(scratch, ignore_errors=True)


def reseed(text):
    """Makes random numbers other than those of sandboxes that began as this
    one did."""
    seed = bytes.fromhex(text)
    import random

    random.seed(seed)
    words = [int.from_bytes(seed[i:i + 4], "big") for i in range(0, len(seed), 4)]
    for name, use in (
        ("numpy.random", lambda m: m.seed(words)),
        ("torch", lambda m: m.manual_seed(int.from_bytes(seed[:8], "big") >> 1)),
        ("ssl", lambda m: m.RAND_add(seed, len(seed))),
    ):
        module = sys.modules.get(name)
        try:
            if module is not None:
                use(module)
        except Exception:
            pass  # a module of that name that is another


def set_env(changes):
    """Sets variables and returns what they were."""
    before = {}
    for key, value in changes.items():
        before[key] = os.environ.get(key)
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value
    return before


def on_interrupt(*_):
    if not state.running:
        return
    if state.critical:
        state.pending = True
        return
    raise KeyboardInterrupt


def interrupted(run):
    """Tells whether a run was interrupted. The signal may have come before the code."""
    try:
        return int.from_bytes(os.pread(MARK, 8, 0), "big") == run
    except OSError:
        return False  # code has closed the descriptor


def prepare(message):
    """Makes things as the run wants them; returns what has to be undone."""
    state.run = message["run"]
    state.outputs, state.bytes_left, state.limits = 0, message["limits"]["outputs_bytes"], message["limits"]
    state.asked.clear()
    state.shown.clear()
    mend_streams()
    if signal.getsignal(signal.SIGINT) is not on_interrupt:
        signal.signal(signal.SIGINT, on_interrupt)
    if message.get("env") is not None:
        changed = {k: message["env"].get(k) for k in {**state.env, **message["env"]}
                   if state.env.get(k) != message["env"].get(k)}
        set_env(changed)
        state.env = message["env"]
    if message.get("reseed"):
        reseed(message["reseed"])
    if message.get("stdin") is not None or not isinstance(sys.stdin, NoInput):
        give_input(message.get("stdin"))
    before = None
    if message.get("home"):
        os.chdir(message["home"])
    if message.get("cwd"):
        try:
            before = os.getcwd()
        except OSError:
            pass
        os.chdir(message["cwd"])
    return before


def handle(message):
    try:
        before = prepare(message)
    except OSError as err:
        send({"t": "refused", "run": message["run"], "why": err.strerror or str(err)})
        return
    name = "<cell %d>" % message["count"]
    linecache.cache.pop("<cell %d>" % (message["count"] - KEPT_CELLS), None)
    env = set_env(message.get("setenv") or {})
    outcome = {"exit": 130, "interrupted": True}
    state.running = True
    try:
        if interrupted(message["run"]):
            state.running = False  # the signal may be yet to come
            err = KeyboardInterrupt()
        else:
            err = (execute_in_shell if state.shell else execute)(message["code"], name)
        if not state.child:
            show_left()
        outcome = verdict(err)
        err = None
        flush()
        state.running = False
    except BaseException as late:  # an interrupt just after the code, or a strange object
        state.running = False
        outcome = verdict(late)
    if state.child:
        flush()
        os._exit(outcome["exit"])
    flush()
    set_env(env)
    if before is not None:
        try:
            os.chdir(before)
        except OSError:
            pass
    if message.get("stdin") is not None:
        os.dup2(STDIO[0], 0)
        sys.stdin = NoInput()
    try:
        cwd = os.getcwd()
    except OSError:
        cwd = ""
    send({"t": "done", "run": message["run"], "cwd": cwd, **outcome})


def forked():
    """In a child that code has forked: the protocol is not its."""
    global lock
    state.child = True
    lock = threading.RLock()
    for fd in (IN, OUT, ACK, MARK):
        try:
            raw_close(fd)
        except OSError:
            pass


def audit(event, _args):
    if event in ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"):
        flush()


def start():
    for name in ("stdout", "stderr"):
        getattr(sys, name).reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    sys.stdin = NoInput()
    sys.displayhook = displayhook
    builtins.display = display
    os.environ.setdefault("MPLBACKEND", "agg")
    for name in [n for n in vars(main) if not n.startswith("__")]:
        del vars(main)[name]
    sys.meta_path.insert(0, Finder())
    signal.signal(signal.SIGINT, on_interrupt)
    os.register_at_fork(after_in_child=forked)
    sys.addaudithook(audit)
    state.env = receive()["env"]
    state.shell = make_shell()
    send({"t": "ready"})
    while True:
        handle(receive())


start()
