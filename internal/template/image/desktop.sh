# The screen of a computer: an X server that speaks VNC on the loopback device
# too, a window manager, a wallpaper and a panel, as far as they are installed.
# It ends when the X server does. COVE_SCREEN and COVE_SHELL say the size and
# what is shown: "desktop" or "browser".
set -u
size=${COVE_SCREEN:-1280x800}
shell=${COVE_SHELL:-desktop}
export DISPLAY="${DISPLAY:-:1}"
number=${DISPLAY#:}
export HOME="${HOME:-/home/user}"
# Where the terminal and the file manager begin: with the sandbox's own files.
work=$PWD
[ "$work" = / ] && work=$HOME
export NO_AT_BRIDGE=1 GTK_THEME=Adwaita XCURSOR_SIZE=24
dir=/tmp/.cove-desktop
mkdir -p "$dir/apps" "$HOME/.local/bin"
rm -f "$dir/ready"
mkdir -m 1777 -p /tmp/.X11-unix
# A lock that an earlier run of the machine has left would be that of another
# computer to the browser.
rm -f "$HOME"/.config/chromium/Singleton* "/tmp/.X$number-lock" "/tmp/.X11-unix/X$number"

has() { command -v "$1" >/dev/null 2>&1; }

# Programs find the browser by the name chromium, with what it needs here. The
# sandbox of its own works for every user but root.
real=
for name in /usr/bin/chromium /usr/lib/chromium/chromium /usr/bin/chromium-browser /usr/bin/google-chrome /opt/google/chrome/chrome; do
  # Debian's launcher does not start without its settings.
  [ "$name" = /usr/bin/chromium ] && [ ! -d /etc/chromium.d ] && continue
  [ -x "$name" ] && real=$name && break
done
if [ -n "$real" ] && [ ! -e "$HOME/.local/bin/chromium" ]; then
  cat >"$HOME/.local/bin/chromium" <<END
#!/bin/sh
[ "\$(id -u)" = 0 ] && set -- --no-sandbox --test-type "\$@"
exec $real --no-first-run --no-default-browser-check --disable-gpu --password-store=basic \\
  --hide-crash-restore-bubble --disable-background-networking --disable-component-update --disable-breakpad \\
  --disable-features=Translate,MediaRouter,GlobalMediaControls --allow-browser-signin=false --start-maximized "\$@"
END
  chmod 755 "$HOME/.local/bin/chromium"
fi
[ -n "$real" ] && export BROWSER="$HOME/.local/bin/chromium"
case ":$PATH:" in *":$HOME/.local/bin:"*) ;; *) export PATH="$HOME/.local/bin:$PATH" ;; esac

# keep FILE writes a file that is not there.
keep() {
  [ -e "$1" ] && return
  mkdir -p "${1%/*}" && cat >"$1"
}

# Programs that open an address themselves, such as xdg-open, find it too.
[ -n "$real" ] && keep "$HOME/.local/share/applications/chromium.desktop" <<END
[Desktop Entry]
Type=Application
Name=Web Browser
Icon=chromium
Exec=$HOME/.local/bin/chromium %U
MimeType=text/html;application/xhtml+xml;application/pdf;image/svg+xml;x-scheme-handler/http;x-scheme-handler/https;
END
[ -n "$real" ] && keep "$HOME/.config/mimeapps.list" <<'END'
[Default Applications]
text/html=chromium.desktop
application/xhtml+xml=chromium.desktop
application/pdf=chromium.desktop
image/svg+xml=chromium.desktop
x-scheme-handler/http=chromium.desktop
x-scheme-handler/https=chromium.desktop
END
keep "$HOME/.gtkrc-2.0" <<'END'
gtk-theme-name="Adwaita"
gtk-icon-theme-name="Adwaita"
gtk-font-name="DejaVu Sans 10"
END
keep "$HOME/.Xdefaults" <<'END'
XTerm*faceName: DejaVu Sans Mono
XTerm*faceSize: 11
XTerm*background: #10161f
XTerm*foreground: #e6edf3
XTerm*cursorColor: #6cb6ff
XTerm*internalBorder: 8
XTerm*selectToClipboard: true
XTerm*saveLines: 5000
XTerm*geometry: 100x30
END

decor=yes max=no
[ "$shell" = browser ] && decor=no max=yes
cat >"$dir/rc.xml" <<END
<?xml version="1.0" encoding="UTF-8"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
  <focus><focusNew>yes</focusNew><focusLast>yes</focusLast></focus>
  <placement><policy>Smart</policy><center>yes</center></placement>
  <theme><name>Clearlooks</name><titleLayout>NLIMC</titleLayout><animateIconify>no</animateIconify>
    <font place="ActiveWindow"><name>DejaVu Sans</name><size>9</size><weight>bold</weight></font>
    <font place="InactiveWindow"><name>DejaVu Sans</name><size>9</size></font>
    <font place="MenuHeader"><name>DejaVu Sans</name><size>10</size></font>
    <font place="MenuItem"><name>DejaVu Sans</name><size>10</size></font>
  </theme>
  <desktops><number>1</number><popupTime>0</popupTime></desktops>
  <keyboard>
    <keybind key="A-F4"><action name="Close"/></keybind>
    <keybind key="A-Tab"><action name="NextWindow"><finalactions><action name="Focus"/><action name="Raise"/><action name="Unshade"/></finalactions></action></keybind>
    <keybind key="A-S-Tab"><action name="PreviousWindow"><finalactions><action name="Focus"/><action name="Raise"/><action name="Unshade"/></finalactions></action></keybind>
  </keyboard>
  <mouse>
    <dragThreshold>4</dragThreshold><doubleClickTime>400</doubleClickTime>
    <context name="Titlebar">
      <mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
      <mousebind button="Left" action="DoubleClick"><action name="ToggleMaximize"/></mousebind>
    </context>
    <context name="Titlebar Top Right Bottom Left TLCorner TRCorner BRCorner BLCorner">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Right" action="Press"><action name="ShowMenu"><menu>client-menu</menu></action></mousebind>
    </context>
    <context name="Top"><mousebind button="Left" action="Drag"><action name="Resize"><edge>top</edge></action></mousebind></context>
    <context name="Bottom"><mousebind button="Left" action="Drag"><action name="Resize"><edge>bottom</edge></action></mousebind></context>
    <context name="Left"><mousebind button="Left" action="Drag"><action name="Resize"><edge>left</edge></action></mousebind></context>
    <context name="Right"><mousebind button="Left" action="Drag"><action name="Resize"><edge>right</edge></action></mousebind></context>
    <context name="TLCorner TRCorner BRCorner BLCorner"><mousebind button="Left" action="Drag"><action name="Resize"/></mousebind></context>
    <context name="Client">
      <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Middle" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
      <mousebind button="Right" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    </context>
    <context name="Icon"><mousebind button="Left" action="DoubleClick"><action name="Close"/></mousebind></context>
    <context name="Close"><mousebind button="Left" action="Click"><action name="Close"/></mousebind></context>
    <context name="Maximize"><mousebind button="Left" action="Click"><action name="ToggleMaximize"/></mousebind></context>
    <context name="Iconify"><mousebind button="Left" action="Click"><action name="Iconify"/></mousebind></context>
    <context name="Root"><mousebind button="Right" action="Press"><action name="ShowMenu"><menu>root-menu</menu></action></mousebind></context>
  </mouse>
  <menu><file>$dir/menu.xml</file></menu>
  <applications><application type="normal"><decor>$decor</decor><maximized>$max</maximized></application></applications>
</openbox_config>
END

# entry KEY NAME ICON COMMAND adds a program to the menu and the panel.
menu= launchers=
entry() {
  menu="$menu<item label=\"$2\"><action name=\"Execute\"><command>$4</command></action></item>"
  printf '[Desktop Entry]\nType=Application\nName=%s\nIcon=%s\nExec=%s\n' "$2" "$3" "$4" >"$dir/apps/$1.desktop"
  launchers="${launchers}launcher_item_app = $dir/apps/$1.desktop
"
}
[ -n "$real" ] && entry browser "Web Browser" chromium "$HOME/.local/bin/chromium"
# program NAME COMMAND makes a program that runs the command where files are.
program() {
  printf '#!/bin/sh\ncd "%s"\nexec %s\n' "$work" "$2" >"$dir/$1"
  chmod 755 "$dir/$1"
}
has xterm && program terminal xterm && entry terminal Terminal utilities-terminal "$dir/terminal"
has pcmanfm && program files 'pcmanfm .' && entry files Files system-file-manager "$dir/files"
cat >"$dir/menu.xml" <<END
<?xml version="1.0" encoding="UTF-8"?>
<openbox_menu xmlns="http://openbox.org/3.4/menu"><menu id="root-menu" label="Menu">$menu</menu></openbox_menu>
END
cat >"$dir/tint2rc" <<END
rounded = 0
border_width = 0
background_color = #0f1a2b 100

rounded = 3
border_width = 0
background_color = #ffffff 10
background_color_hover = #ffffff 20

rounded = 3
border_width = 0
background_color = #3b6ea5 100
background_color_hover = #4a80bb 100

panel_items = LTC
panel_size = 100% 36
panel_background_id = 1
panel_padding = 4 3 6
panel_position = bottom center horizontal
strut_policy = follow_size
wm_menu = 0
taskbar_mode = single_desktop
taskbar_padding = 6 0 4
task_text = 1
task_icon = 1
task_centered = 0
task_maximum_size = 220 30
task_padding = 6 2 6
task_font = DejaVu Sans 9
task_font_color = #e6edf3 100
task_background_id = 2
task_active_background_id = 3
mouse_left = toggle_iconify
launcher_padding = 4 0 6
launcher_icon_size = 26
launcher_icon_theme = Adwaita
launcher_icon_theme_override = 0
launcher_tooltip = 0
startup_notifications = 0
$launchers
time1_format = %H:%M
time1_font = DejaVu Sans 10
clock_font_color = #e6edf3 100
clock_padding = 8 0
END

# What is begun when the window manager runs.
cat >"$dir/session" <<END
#!/bin/sh
if command -v hsetroot >/dev/null; then hsetroot -add '#17304f' -add '#2f6295' -gradient 20
elif command -v xsetroot >/dev/null; then xsetroot -solid '#1f3a5f'; fi
if [ "$shell" = desktop ] && command -v tint2 >/dev/null; then tint2 -c "$dir/tint2rc" >"$dir/tint2.log" 2>&1 & fi
if [ "$shell" = browser ] && [ -n "$real" ]; then "$HOME/.local/bin/chromium" about:blank >"$dir/chromium.log" 2>&1 & fi
touch "$dir/ready"
END
chmod 755 "$dir/session"

if has Xvnc; then
  # Viewers are told of the picture only, not of what is copied.
  Xvnc "$DISPLAY" -geometry "$size" -depth 24 -dpi 96 -rfbport $((5900 + number)) -localhost -SecurityTypes None -AlwaysShared \
    -AcceptSetDesktopSize=0 -SendCutText=0 -FrameRate=30 -desktop "Cove" -nolisten tcp -ac -noreset -s 0 -extension GLX >"$dir/x.log" 2>&1 &
elif has Xvfb; then
  Xvfb "$DISPLAY" -screen 0 "${size}x24" -nolisten tcp -ac -noreset -s 0 >"$dir/x.log" 2>&1 &
else
  echo "no X server: the template needs Xvnc (Debian's tigervnc-standalone-server) or Xvfb" >&2
  exit 1
fi
server=$!
while [ ! -S "/tmp/.X11-unix/X$number" ]; do
  kill -0 $server 2>/dev/null || { echo "the X server ended at once:" >&2; tail -n 5 "$dir/x.log" >&2; exit 1; }
  sleep 0.05
done
if has openbox; then
  # It is begun again, should it end.
  (while kill -0 $server 2>/dev/null; do openbox --config-file "$dir/rc.xml" --startup "$dir/session" >"$dir/openbox.log" 2>&1; rm -f "$dir/session.pid"; sleep 1; done) &
else
  "$dir/session" &
fi
wait $server
