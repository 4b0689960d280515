"""What must hold in any sound run, measured beside the steps. Each becomes a signal; the doctor's rules say what it means."""
