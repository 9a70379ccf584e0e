"""What plugins' own servers and commands use: public. Import its modules one by one; each loads only what it needs."""
