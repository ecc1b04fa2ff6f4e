

# Charts as data: what a matplotlib figure shows, for programs that draw it anew.

MAX_POINTS = 20_000  # of a figure; one with more has no data


def chart(fig):
    """Describes a figure: a chart, or one of several."""
    charts = [c for c in map(chart_of, fig.axes) if c]
    if not charts:
        return {}
    if sum(len(e.get("points", ())) for c in charts for e in c["elements"]) > MAX_POINTS:
        return None
    if len(charts) == 1:
        return charts[0]
    title = getattr(fig, "_suptitle", None)
    return {"type": "superchart", "title": title.get_text() if title else None, "elements": charts}


def chart_of(ax):
    """Describes what a pair of axes shows; None if that is nothing."""
    if not (ax.lines or ax.patches or ax.collections or ax.images or ax.containers):
        return None
    title = {"title": ax.get_title() or None}
    for kind, find in (("pie", pie), ("box_and_whisker", boxes), ("bar", bars), ("line", lines), ("scatter", dots)):
        found = find(ax)
        if not found:
            continue
        made = {"type": kind, **title, "elements": found}
        if kind != "pie":
            made.update(labels_of(ax))
        if kind in ("line", "scatter"):
            made.update(ticks_of("x", ax.xaxis))
            made.update(ticks_of("y", ax.yaxis))
        return made
    return {"type": "unknown", **title, "elements": []}


def labels_of(ax):
    import re

    made = {}
    for name, label in (("x", ax.get_xlabel()), ("y", ax.get_ylabel())):
        unit = re.search(r"\(([^()]+)\)\s*$|\[([^\[\]]+)\]\s*$", label)
        made[name + "_label"] = label or None
        made[name + "_unit"] = (unit.group(1) or unit.group(2)) if unit else None
    return made


def units_of(axis):
    """Says what the values of an axis are: "datetime", "categorical" or ""."""
    get = getattr(axis, "get_converter", None)
    converter = type(get() if get else axis.converter).__name__
    if "Date" in converter:
        return "datetime"
    return "categorical" if "StrCategory" in converter else ""


def ticks_of(name, axis):
    kind = units_of(axis)
    ticks = [v for v in axis.get_ticklocs()]
    return {
        name + "_ticks": [plain(v, axis) if kind == "datetime" else plain(v) for v in ticks],
        name + "_tick_labels": [t.get_text() for t in axis.get_ticklabels()],
        name + "_scale": kind or axis.get_scale(),
    }


def plain(value, axis=None):
    """A value as JSON has it; dates, and places on an axis of them, in ISO."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if type(value).__name__ in ("datetime64", "str", "str_"):
        return str(value)
    number = float(value)
    kind = units_of(axis) if axis is not None else ""
    if kind == "datetime":
        from matplotlib.dates import num2date

        return num2date(number).replace(tzinfo=None).isoformat()
    if kind == "categorical":
        for text, at in axis.units._mapping.items():
            if at == number:
                return text
    if number != number or number in (float("inf"), float("-inf")):
        return None
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


def tick_at(axis, place):
    """The label that stands at a place of an axis, or the place itself."""
    for at, tick in zip(axis.get_ticklocs(), axis.get_ticklabels()):
        if abs(at - place) < 1e-6 and tick.get_text():
            return tick.get_text()
    return str(plain(place, axis))


def points_of(xs, ys, ax):
    return [[plain(x, ax.xaxis), plain(y, ax.yaxis)] for x, y in zip(xs, ys)]


def named(artist, number):
    label = str(artist.get_label())
    return "Group %d" % number if not label or label.startswith("_") else label


def is_line(line):
    return line.get_linestyle() not in ("None", "", " ")


def lines(ax):
    found = [line for line in ax.lines if is_line(line)]
    if sum(len(line.get_xdata()) for line in found) > MAX_POINTS:
        return []
    return [{"label": str(line.get_label()), "points": points_of(line.get_xdata(False), line.get_ydata(False), ax)} for line in found]


def dots(ax):
    found = []
    for c in ax.collections:
        if type(c).__name__ == "PathCollection":
            at = c.get_offsets()
            found.append({"label": named(c, len(found)), "points": points_of(at[:MAX_POINTS + 1, 0], at[:MAX_POINTS + 1, 1], ax)})
    for line in ax.lines:
        if not is_line(line) and line.get_marker() not in ("None", "", " ", None):
            at = slice(MAX_POINTS + 1)
            found.append({"label": named(line, len(found)), "points": points_of(line.get_xdata(False)[at], line.get_ydata(False)[at], ax)})
    return found


def bars(ax):
    found = []
    groups = [c for c in ax.containers if type(c).__name__ == "BarContainer"]
    for number, group in enumerate(groups):
        lying = getattr(group, "orientation", None) == "horizontal"
        for bar in group.patches:
            axis = ax.yaxis if lying else ax.xaxis
            middle = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
            found.append({
                "label": tick_at(axis, middle), "group": named(group, number),
                "value": plain(bar.get_width() if lying else bar.get_height()),
            })
    return found[:MAX_POINTS]


def pie(ax):
    return [
        {"label": str(w.get_label()), "angle": plain(abs(w.theta2 - w.theta1)), "radius": plain(w.r)}
        for w in ax.patches if type(w).__name__ == "Wedge"
    ][:MAX_POINTS]


def boxes(ax):
    """Finds boxes by their outlines, and what belongs to each by its place."""
    outlines = [line.get_xydata() for line in ax.lines if len(line.get_xdata()) == 5]
    outlines += [p.get_path().vertices[:5] for p in ax.patches if type(p).__name__ == "PathPatch" and len(p.get_path().vertices) >= 5]
    found = []
    for at in outlines:
        xs, ys = sorted(set(map(float, at[:, 0]))), sorted(set(map(float, at[:, 1])))
        if len(xs) != 2 or len(ys) != 2:
            continue
        made = box(ax, xs, ys, 1) or box(ax, ys, xs, 0)
        if made:
            found.append(made)
    return found


def box(ax, across, along, value):
    """Describes the box of a width and a height if whiskers go along it; value is
    the index of the coordinate that has values."""
    middle = sum(across) / 2
    whiskers, medians, outliers = [], [], []
    for line in ax.lines:
        at = line.get_xydata()
        place, values = at[:, 1 - value], at[:, value]
        if len(at) and not is_line(line) and all(abs(place - middle) < 1e-9):
            outliers += [plain(v) for v in values[:MAX_POINTS]]
        elif len(at) != 2:
            continue
        elif all(abs(place - middle) < 1e-9):
            whiskers += [float(v) for v in values]
        elif values[0] == values[1] and abs(min(place) - across[0]) < 1e-9 and abs(max(place) - across[1]) < 1e-9:
            medians.append(float(values[0]))
    if len(whiskers) < 4 or not medians:
        return None
    axis = ax.xaxis if value else ax.yaxis
    return {
        "label": tick_at(axis, middle), "min": plain(min(whiskers)), "first_quartile": plain(along[0]),
        "median": plain(medians[0]), "third_quartile": plain(along[1]), "max": plain(max(whiskers)), "outliers": outliers,
    }
