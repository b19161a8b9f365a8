"""Published methods that edgevit's own are compared with: one file each, found by name, by the protocol of
`edgevit.derivation.methods`. `common/` holds what those that rank units share.
"""
