from packprep.cli import main

main()
