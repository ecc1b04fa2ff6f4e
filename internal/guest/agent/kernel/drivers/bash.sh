PS1= PS2=
set +o history +H +m; shopt -u checkwinsize huponexit
unset PROMPT_COMMAND MAILCHECK HISTFILE TMOUT BASH_ENV
exec {__cove_fd}>&3 3>&-
declare -A __cove_old=()
__cove_quiet() { if [[ $- == *x* ]]; then __cove_x=1; builtin set +x; elif [[ -v __cove_on ]]; then builtin unset -v __cove_x; fi; builtin unset -v __cove_on; }
__cove_trace() { if [[ -v __cove_x ]]; then builtin set -x; fi; __cove_on=1; }
exit() { { local __cove_s=$?; __cove_quiet; } 2>/dev/null; if [[ $BASHPID != "$$" ]]; then builtin exit "${1-$__cove_s}"; fi; __cove_code=$(( ${1-$__cove_s} & 255 )); exec {__cove_err}>&2 2>/dev/null; builtin kill -INT "$$"; }
__cove_set() { if [[ -v $1 ]]; then __cove_old[$1]=${!1}; else builtin unset "__cove_old[$1]"; fi; builtin export "$1=$2"; }
__cove_unset() { local n; for n; do if [[ -v __cove_old[$n] ]]; then builtin export "$n=${__cove_old[$n]}"; else builtin unset -v "$n"; fi; done; __cove_old=(); }
__cove_begin() { builtin unset -v __cove_code __cove_back __cove_refused; trap - INT; builtin printf 'begun\0%s\0' "$1" >&"$__cove_fd"; }
__cove_enter() { __cove_back=$PWD; builtin cd -- "$1" 2>/dev/null || { __cove_refused=1; return 1; }; }
__cove_end() { local s=$2 k=done; trap '' INT; if [[ ${__cove_told-} == "$1" ]]; then return; fi; s=${__cove_code-$s}; if [[ -v __cove_err ]]; then exec 2>&"$__cove_err" {__cove_err}>&-; builtin unset -v __cove_err; fi; if [[ -v __cove_refused ]]; then k=refused; elif [[ -v __cove_back ]]; then builtin cd -- "$__cove_back" 2>/dev/null; fi; builtin printf '%s\0%s\0%s\0%s\0' "$k" "$1" "$s" "$PWD" >&"$__cove_fd"; __cove_told=$1; }
set -E; trap '{ __cove_f=$?; [[ $- == *e* && $BASHPID == "$$" ]]; } 2>/dev/null && exit "$__cove_f"' ERR
builtin printf 'ready\0' >&"$__cove_fd"
