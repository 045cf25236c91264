# Types `leasehold hist`, Tab and ` --help` into a new zsh, and prints the output of the terminal.
#
#   zsh -f packaging/complete.zsh FOLDER-OF-SCRIPT FOLDER-OF-COMMAND
zmodload zsh/zpty
zpty shell "TERM=dumb SCRIPTS=$1 FOLDER=$2 HOME=$HOME zsh -f -i"
# The mark is typed in two parts, because the terminal also shows the input.
zpty -w shell 'PATH=$FOLDER:$PATH fpath=($SCRIPTS $fpath); autoload -Uz compinit; compinit -D -u; print READ"Y"'
zpty -r shell line '*READY*'
zpty -w -n shell $'leasehold hist\t --help\n'
zpty -r shell line '*Usage*'
print -r -- "$line"
