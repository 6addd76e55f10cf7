from gossamer.cli import main

main()
