"""Templates, conversations and what is trained of them: tables of tests of chats."""
