"""Two measurements side by side: what changed, by how much, and whether noise alone could have done it.

One way, as everywhere: runs (`costs`) to paired buckets (`pairing`) to evidence (`evidence`, `student`) to a
`comparison`, with what else differs between the sides (`caveats`), to text (`render`).
"""
