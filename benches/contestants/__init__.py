"""Who is measured: one file each, with a writer and a reader that live in processes of their own."""
