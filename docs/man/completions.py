# SPDX-License-Identifier: GPL-2.0-or-later
"""Completions for bash, zsh and fish, from the command lines themselves."""

from __future__ import annotations

from typing import Dict, Iterable, List

from commands import Argument, Command, Option, writebackctl, writebackd, writebackd_raid

# bash makes three words of --option=value.
_BASH_WORDS = """\
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    [ "$prev" != "=" ] || prev=${COMP_WORDS[COMP_CWORD - 2]}
    [ "$cur" != "=" ] || cur="""
_HEAD = "# SPDX-License-Identifier: GPL-2.0-or-later\n# Made by docs/man/generate.py.\n"
WITHOUT_VERBS = {"writebackd": writebackd, "writebackd-raid": writebackd_raid}
# What completes a placeholder, in bash; those that are not here take any text.
_BASH_VALUES = {
    "DIR": 'compgen -d -- "$cur"',
    "FILE": 'compgen -f -- "$cur"',
    "NAME|FILE": '_writebackd_policies; compgen -f -- "$cur"',
    "DEVICE": "_writebackd_devices",
    "TIME": 'compgen -W "10m 1h 6h 1d 1w" -- "$cur"',
}
_ZSH_VALUES = {
    "DIR": "_files -/",
    "FILE": "_files",
    "NAME|FILE": "_writebackd_policies",
    "DEVICE": "_writebackd_devices",
    "TIME": "(10m 1h 6h 1d 1w)",
}
_BASH_FUNCTIONS = """\
# Disks that hold something: a loop device without a file has no size.
_writebackd_devices() {
    local each size names=""
    for each in /sys/block/*; do
        read -r size 2>/dev/null <"$each/size" || continue
        [ "$size" = 0 ] || names+=" ${each##*/}"
    done
    compgen -W "$names" -- "$cur"
}

_writebackd_policies() {
    local file
    for file in {/usr/lib,/run,/etc}/writebackd/policies.d/*.conf; do
        [ ! -e "$file" ] || basename "$file" .conf
    done | { local names; names=$(cat); compgen -W "$names" -- "$cur"; }
}
"""
# Names without the .conf of their files: a word that ends in it is a path to the programs.
_ZSH_FUNCTIONS = """\
# Disks that hold something: a loop device without a file has no size.
_writebackd_devices() {
    local each size
    local -a names
    for each in /sys/block/*(N); do
        read -r size 2>/dev/null <$each/size && [[ $size != 0 ]] && names+=(${each:t})
    done
    compadd -a names
}

_writebackd_policies() {
    local -aU names
    names=({/usr/lib,/run,/etc}/writebackd/policies.d/*.conf(N:t:r))
    _alternative 'policies:policy:compadd -a names' 'files:file:_files'
}
"""
_FISH_VALUES = {
    "DIR": "(__fish_complete_directories)",
    "FILE": "(__fish_complete_path)",
    "NAME|FILE": "(__writebackd_policies; __fish_complete_path)",
    "DEVICE": "(__writebackd_devices)",
    "TIME": "10m 1h 6h 1d 1w",
    "-- COMMAND": "(__fish_complete_command; __fish_complete_path)",
}
_FISH_FUNCTIONS = """\
# Disks that hold something: a loop device without a file has no size.
function __writebackd_devices
    for each in /sys/block/*
        test (cat $each/size 2>/dev/null; or echo 0) = 0; or basename $each
    end
end

function __writebackd_policies
    for file in {/usr/lib,/run,/etc}/writebackd/policies.d/*.conf
        basename $file .conf
    end
end
"""
# What options take is no verb.
_FISH_VERB = """\
function __writebackctl_words
    set -l words
    set -l taken no
    for word in (commandline -opc)[2..]
        if test $taken = yes
            set taken no
            continue
        end
        switch $word
            case %s
                set taken yes
            case '-*'
            case '*'
                set -a words $word
        end
    end
    echo "$words"
end

function __writebackctl_within
    string match -q -- "$argv *" (__writebackctl_words)" "
end
"""


def bash_writebackctl() -> str:
    root = writebackctl()
    takers = sorted({flag for each in _everything(root) for flag in _taking(each.options)})
    lines = [
        _HEAD + "# shellcheck shell=bash disable=SC2207",
        _BASH_FUNCTIONS,
        "_writebackctl() {",
        _BASH_WORDS,
        '    local verb="" i',
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        "        case ${COMP_WORDS[i]} in",
        f"            {' | '.join(takers)})",
        '                [ "${COMP_WORDS[i + 1]}" != "=" ] || ((i++))',
        "                ((i++)) ;;",
        "            -*) ;;",
        '            *) verb="${verb:+$verb }${COMP_WORDS[i]}" ;;',
        "        esac",
        "        case $verb in",
        # What comes after the command of `run` is the command's own.
        "            run\\ *) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;",
        "        esac",
        "    done",
    ]
    for each in _everything(root):
        if each.words:
            lines += _bash_values(each)
    lines += _bash_words(root)
    lines += ["}", "complete -o filenames -F _writebackctl writebackctl", ""]
    return "\n".join(lines)


def bash_simple(program: str) -> str:
    """A program without verbs."""
    root = WITHOUT_VERBS[program]()
    lines = [
        _HEAD + "# shellcheck shell=bash disable=SC2207",
        _BASH_FUNCTIONS,
        f"_{program}() {{",
        _BASH_WORDS,
        "    case $prev in",
        *_bash_cases(root),
        "    esac",
        f'    COMPREPLY=($(compgen -W "{_joined(_flags(root))}" -- "$cur"))',
        "}",
        f"complete -o filenames -F _{program} {program}",
        "",
    ]
    return "\n".join(lines)


def zsh() -> str:
    root = writebackctl()
    lines = [f"#compdef {_joined(('writebackctl', *WITHOUT_VERBS))}", _HEAD, _ZSH_FUNCTIONS]
    for each in _everything(root):
        if each.words and not each.below:
            lines += [f"_writebackctl_{'_'.join(each.words)}() {{", *_zsh_arguments(each), "}", ""]
    for group in (each for each in _everything(root) if each.below):
        name = "_".join(("_writebackctl", *group.words))
        # Not _writebackctl: that is the file's own, loaded for both programs.
        own = name if group.words else f"{name}_verb"
        lines += [f"{own}() {{", "    local -a verbs", "    local state line"]
        lines += ["    verbs=("]
        lines += [f"        {_quoted(f'{_colons(s.words[-1])}:{s.summary}')}" for s in group.below]
        lines += ["    )"]
        options = [f"        {_quoted(_zsh_option(option))} \\" for option in group.options]
        lines += ["    _arguments -C \\", *options]
        lines += ["        '1: :->verb' '*:: :->rest'", "    case $state in"]
        lines += ["        verb) _describe verb verbs ;;"]
        lines += [f"        rest) (( $+functions[{name}_$words[1]] )) && {name}_$words[1] ;;"]
        lines += ["    esac", "}", ""]
    for program, command in WITHOUT_VERBS.items():
        lines += [f"_{program}() {{", *_zsh_arguments(command()), "}", ""]
    lines += ["case $service in", *(f"    {each}) _{each} ;;" for each in WITHOUT_VERBS)]
    return "\n".join([*lines, "    *) _writebackctl_verb ;;", "esac", ""])


def fish_writebackctl() -> str:
    root = writebackctl()
    takers = sorted({flag for each in _everything(root) for flag in _taking(each.options)})
    lines = [_HEAD + _FISH_FUNCTIONS, _FISH_VERB % _joined(takers), "complete -c writebackctl -f"]
    for each in _everything(root):
        call = f"__writebackctl_within {each.name}".rstrip()
        exactly = f'test (__writebackctl_words) = "{each.name}"'
        lines += _fish_options("writebackctl", each, call if each.words else exactly)
        lines += [
            f"complete -c writebackctl -n {_quoted(exactly)} -a {sub.words[-1]}"
            f" -d {_fish_quoted(sub.summary)}"
            for sub in each.below
        ]
        for argument in each.arguments:
            values = _FISH_VALUES.get(argument.name)
            if values:
                lines.append(f"complete -c writebackctl -n {_quoted(call)} -a {_quoted(values)}")
    return "\n".join([*lines, ""])


def fish_simple(program: str) -> str:
    """A program without verbs."""
    options = _fish_options(program, WITHOUT_VERBS[program](), "")
    return "\n".join([_HEAD + _FISH_FUNCTIONS, f"complete -c {program} -f", *options, ""])


def _fish_options(program: str, command: Command, condition: str) -> List[str]:
    where = f" -n {_quoted(condition)}" if condition else ""
    lines = []
    for option in command.options:
        names = "".join(
            f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}"
            for flag in option.flags
        )
        values = _joined(option.choices) or _FISH_VALUES.get(_kind(option), "")
        takes = "" if option.value is None else " -x" + (f" -a {_quoted(values)}" if values else "")
        about = _fish_quoted(option.help)
        lines.append(f"complete -c {program}{where}{names}{takes} -d {about}")
    return lines


def _everything(command: Command) -> List[Command]:
    found = [command]
    for each in command.below:
        found += _everything(each)
    return found


def _taking(options: Iterable[Option]) -> List[str]:
    return [flag for option in options if option.value is not None for flag in option.flags]


def _flags(command: Command) -> List[str]:
    return [flag for option in command.options for flag in option.flags]


def _joined(words: Iterable[str]) -> str:
    return " ".join(words)


def _kind(option: Option) -> str:
    """What a value is: the `NAME` of --device is a device's, others are of things to come."""
    return "DEVICE" if "--device" in option.flags else str(option.value)


def _bash_cases(command: Command) -> List[str]:
    lines = []
    for option in command.options:
        if option.value is None:
            continue
        call = f'compgen -W "{_joined(option.choices)}" -- "$cur"'
        if not option.choices:
            call = _BASH_VALUES.get(_kind(option), ":")
        lines.append(f"        {' | '.join(option.flags)}) COMPREPLY=($({call})); return ;;")
    return lines


def _bash_values(command: Command) -> List[str]:
    lines = [f"    if [ \"$verb\" = {_quoted(command.name)} ]; then", "        case $prev in"]
    lines += [f"    {line}" for line in _bash_cases(command)]
    lines += ["        esac"]
    more = ""
    for argument in command.arguments:
        call = _BASH_VALUES.get(argument.name)
        if argument.name == "-- COMMAND":
            call = 'compgen -W "--" -- "$cur"; compgen -c -- "$cur"'
        more += f"; {call}" if call else ""
    if command.below or more:
        # Options only for who begins to write one.
        below = _joined(each.words[-1] for each in command.below)
        lines.append('        if [[ $cur == -* ]]; then')
        flags = _joined(_flags(command))
        lines.append(f'            COMPREPLY=($(compgen -W "{flags}" -- "$cur"))')
        lines.append("        else")
        lines.append(f'            COMPREPLY=($(compgen -W "{below}" -- "$cur"{more}))')
        lines.append("        fi")
    else:
        words = _joined(_flags(command))
        lines.append(f'        COMPREPLY=($(compgen -W "{words}" -- "$cur"))')
    return [*lines, "        return", "    fi"]


def _bash_words(root: Command) -> List[str]:
    verbs = _joined(each.words[-1] for each in root.below)
    return [
        "    case $prev in",
        *_bash_cases(root),
        "    esac",
        # An argument after the verb and its own, such as a second FILE.
        '    [ -z "$verb" ] || { COMPREPLY=($(compgen -f -- "$cur")); return; }',
        f'    COMPREPLY=($(compgen -W "{verbs}" -- "$cur"))',
        "    [[ $cur != -* ]] ||",
        f'        COMPREPLY=($(compgen -W "{_joined(_flags(root))}" -- "$cur"))',
    ]


def _zsh_arguments(command: Command) -> List[str]:
    lines = ["    _arguments -S \\"]
    lines += [f"        {_quoted(_zsh_option(option))} \\" for option in command.options]
    lines += [f"        {_quoted(_zsh_positional(each))} \\" for each in command.arguments]
    lines[-1] = lines[-1][: -len(" \\")]
    return lines


def _zsh_option(option: Option) -> str:
    names = option.flags[0] if len(option.flags) == 1 else f"{option.flags[-1]}"
    text = f"{names}[{option.help.translate(_ZSH_ESCAPES)}]"
    if option.value is None:
        return text
    values = f"({_joined(option.choices)})" if option.choices else ""
    values = values or _ZSH_VALUES.get(_kind(option), " ")
    return f"{text}:{_colons(option.value)}:{values}"


def _zsh_positional(argument: Argument) -> str:
    if argument.name == "-- COMMAND":
        return "*:::command:_normal"
    values = _ZSH_VALUES.get(argument.name, " ")
    return f"*:{_colons(argument.name)}:{values}"


_ZSH_ESCAPES: Dict[int, str] = str.maketrans({"[": "\\[", "]": "\\]", ":": "\\:"})


def _colons(text: str) -> str:
    return text.replace(":", "\\:")


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
