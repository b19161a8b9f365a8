"""What a derivation does around its method. The modules, in the order in which `derive` calls them:

    in_memory    modules, arrays and loaders become files
    opening      open base and images (without labels: imitation), fit a head, keep unfinished work
    resolved     the request with method, budget and training resolved: `Problem` for the method, records for the folder
    baselines    the base's accuracy, full and restricted (base_check: does it know its classes?), and after training
    start        cut the base, or the trained base
    (method)     derivation/methods/
    depth        with `remove_blocks`: whole blocks go, too
    rest         with `rest_rate`: the layers behind the backbone are cut, too
    head         a head reads a narrower embedding itself, where its layers can
    baselines    judge the derived network; rejection: when is an image of no class; imitation: how like the base
    card         README.md of the folder, which opening writes

`base` and `supernet` are the other commands: they open and write in the same way.
"""
