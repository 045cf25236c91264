# Types `leasehold hist`, Tab and ` --help` into a fresh zsh, and prints what the terminal shows.
#
#   zsh -f packaging/complete.zsh FOLDER-OF-SCRIPT FOLDER-OF-COMMAND
zmodload zsh/zpty
zpty shell "TERM=dumb SCRIPTS=$1 FOLDER=$2 HOME=$HOME zsh -f -i"
# The mark is typed in two parts: the terminal shows what is typed, too.
zpty -w shell 'PATH=$FOLDER:$PATH fpath=($SCRIPTS $fpath); autoload -Uz compinit; compinit -D -u; print READ"Y"'
zpty -r shell line '*READY*'
zpty -w -n shell $'leasehold hist\t --help\n'
zpty -r shell line '*Usage*'
print -r -- "$line"
